"""User-defined encoders: `module:callable` or `file.py:callable`.

The callable is called without arguments and returns the encoder: a torch module or another callable that maps float32
n x 3 x p x p with values from 0 to 1 to n x width. The encoder does its own normalization and resizing. Its optional
attributes are `tile_px` (side of its tiles, default 256) and `mpp` (their microns per pixel, default 0.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from asmil.errors import AsmilError, did_you_mean
from asmil.settings.own_code import describe, names_code, own_module, same_attribute
from asmil.slides.encoders.base import Encoder, EncoderEntry, Transform
from asmil.slides.encoders.state import state_hash
from asmil.slides.settings import DEFAULT_MPP, DEFAULT_TILE_PX

AS_THEY_ARE = Transform(None, None, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class Function(nn.Module):
    """Wraps a function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.tile_px = getattr(function, "tile_px", DEFAULT_TILE_PX)
        self.mpp = getattr(function, "mpp", DEFAULT_MPP)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def confirmed_encoder(name: str, given: str | None, named_by: str) -> str:
    """The encoder to use for one that a file names: itself, or what the user gives for it if it is code.

    Code is executed only from where the user says it is: its file may have been elsewhere when features were extracted.

    given: the encoder as the user names it
    named_by: the file that names the encoder
    """
    if given is not None and given != name and not same_attribute(name, given):
        remedy = "give the same callable" if names_code(name) else "leave --encoder out"
        raise AsmilError(f"--encoder {given}: {named_by} names the encoder {name}; {remedy}")
    if given is None and names_code(name):
        raise AsmilError(
            f"{named_by} names the encoder {name}, which is code that would be executed here; inspect it, and if you "
            f"trust it, confirm it with --encoder {name}"
        )
    return name if given is None else given


def own_entry(name: str) -> EncoderEntry:
    """The registry entry of the callable, which is called to determine it."""
    network = _called(name)
    return EncoderEntry(
        name=name,
        summary="a user-defined encoder",
        width=_width(name, network, torch.device("cpu")),
        tile_px=_tile_px(network),
        mpp=float(getattr(network, "mpp", DEFAULT_MPP)),
        mean=AS_THEY_ARE.mean,
        std=AS_THEY_ARE.std,
        licence="yours",
        build=lambda: _called(name),
    )


def load_own(name: str, device: torch.device, precision: Literal["float32", "bf16"]) -> Encoder:
    """The encoder, ready to run."""
    network = _called(name).to(device)
    state = network.state_dict()
    weights_hash = state_hash(state) if state else ""
    width = _width(name, network, device)
    return Encoder(name, network, width, weights_hash, AS_THEY_ARE, device, precision, cast=False)


def imported(name: str) -> Any:
    """The result of calling the named callable without arguments; it must be callable itself."""
    source, _, attribute = name.rpartition(":")
    owner: Any = own_module(source, f"encoder {name}")
    for part in attribute.split("."):
        if not hasattr(owner, part):
            callables = [key for key, value in vars(owner).items() if callable(value) and not key.startswith("_")]
            raise AsmilError(f"encoder {name}: {source} has no {part!r}; {did_you_mean(part, callables)}")
        owner = getattr(owner, part)
    try:
        network = owner()
    except Exception as error:  # noqa: BLE001
        raise AsmilError(f"encoder {name}: calling it without arguments fails with {describe(error)}; fix it") from None
    if not callable(network):
        raise AsmilError(f"encoder {name}: it returns a {type(network).__name__}; return a torch module or a function")
    return network


def _called(name: str) -> nn.Module:
    network = imported(name)
    return (network if isinstance(network, nn.Module) else Function(network)).eval()


def _width(name: str, network: nn.Module, device: torch.device) -> int:
    """Number of features of a tile, found by encoding two blank tiles."""
    side_px = _tile_px(network)
    try:
        with torch.inference_mode():
            features = network(torch.ones(2, 3, side_px, side_px, device=device))
    except Exception as error:  # noqa: BLE001
        raise AsmilError(
            f"encoder {name}: encoding two blank tiles of {side_px} px fails with {describe(error)}; fix it, "
            "or set its attribute tile_px to the side of its tiles"
        ) from None
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2:
        got = f"a tensor of shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise AsmilError(
            f"encoder {name}: for two tiles it returned {got}; return one row of features per tile, here a tensor of "
            "shape (2, width)"
        )
    return features.shape[1]


def _tile_px(network: nn.Module) -> int:
    return int(getattr(network, "tile_px", DEFAULT_TILE_PX))
