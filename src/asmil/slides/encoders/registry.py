"""The registry of encoders, and loading an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from asmil.errors import AsmilError, did_you_mean
from asmil.machine.bf16 import uses_bf16
from asmil.machine.lazy_names import import_modules
from asmil.settings.own_code import names_code
from asmil.slides.encoders.base import Encoder, EncoderEntry, Precision
from asmil.slides.encoders.fused import fold_batch_norms
from asmil.slides.encoders.own_callable import load_own, own_entry
from asmil.slides.encoders.state import empty_network, fill, fitted, read_state, state_hash
from asmil.slides.encoders.vit import VisionTransformer, VitShape, fold_layer_scales
from asmil.slides.encoders.weights import find_weights

DEFAULT_ENCODER = "efficientnet_lite0"

_ENTRIES: dict[str, EncoderEntry] = {}


def register(name: str, summary: str, **others: Any) -> None:
    """Register an encoder under its name; others: the other fields of its `EncoderEntry`."""
    _ENTRIES[name] = EncoderEntry(name, summary, **others)


def register_vit(name: str, summary: str, shape: VitShape, licence: str, hub: str, **others: Any) -> None:
    """Register a vision transformer of the hub that gives one vector per tile; tiles are 224 px wide by default.

    others: fields of `EncoderEntry` that differ from their defaults
    """
    others = {"tile_px": 224, "input_px": shape.image_px} | others
    build = partial(VisionTransformer, shape)
    register(name, summary, width=shape.features, licence=licence, build=build, hub=hub, **others)


def encoders() -> dict[str, EncoderEntry]:
    """All registered encoders, by name: every module of `asmil.slides.encoders` may register some."""
    import_modules("asmil.slides.encoders")
    return dict(sorted(_ENTRIES.items()))


def find_encoder(name: str) -> EncoderEntry:
    """The encoder called `name`, or a user-defined one (`asmil.settings.own_code`); an error suggests similar names."""
    if names_code(name):
        return own_entry(name)
    known = encoders()
    if name not in known:
        raise AsmilError(
            f"unknown encoder {name!r}: {did_you_mean(name, known)} "
            "(for your own encoder, give file.py:callable or module:callable)"
        )
    return known[name]


def load_encoder(
    name: str, weights: Path | None = None, device: str | torch.device = "cpu", precision: Precision = "auto"
) -> Encoder:
    """An encoder by its name, with its weights, ready to run.

    weights: a file of weights; by default they are searched for as described in `asmil.slides.encoders.weights`
    precision: "auto" is bf16 on a GPU that supports it, unless the entry marks it as less accurate; else float32
    """
    device = torch.device(device)
    if names_code(name):
        if weights is not None:
            raise AsmilError(
                f"encoder {name}: --weights does not apply to user-defined encoders; load {weights} in its code"
            )
        return load_own(name, device, chosen_precision(precision, device))
    entry = find_encoder(name)
    chosen = chosen_precision(precision, device, entry.exact_in_bf16)
    return assemble(entry, find_weights(entry, weights), device, chosen)


def assemble(
    entry: EncoderEntry, weights: Path, device: torch.device, precision: Literal["float32", "bf16"]
) -> Encoder:
    """The encoder of an entry with the weights of a file."""
    network = empty_network(entry)
    published = read_state(weights)
    state = fitted(entry, published, network)
    if isinstance(state, str):
        raise AsmilError(f"{weights}: does not match encoder {entry.name}: it {state}; {_looks_like(entry, published)}")
    network = fold_layer_scales(fold_batch_norms(fill(network, state)))
    return Encoder(
        entry.name, network, entry.width, state_hash(state), entry.transform, device, precision, entry.min_px
    )


def chosen_precision(
    precision: Precision, device: torch.device, exact_in_bf16: bool = True
) -> Literal["float32", "bf16"]:
    """The precision for a device; "auto" depends on whether device and network support bf16."""
    if precision == "auto" and not exact_in_bf16:
        return "float32"
    return "bf16" if uses_bf16(precision, device, "precision", "float32") else "float32"


_example = cache(empty_network)


def _looks_like(entry: EncoderEntry, published: Mapping[str, Tensor]) -> str:
    """A sentence about which encoder the tensors belong to."""
    fitting = [
        other.name
        for other in encoders().values()
        if other.name != entry.name and not isinstance(fitted(other, published, _example(other)), str)
    ]
    if fitting:
        return f"these are weights of {' or '.join(fitting)}; choose that encoder or another file"
    first = ", ".join(list(published)[:3])
    return f"it does not match any other encoder (its names begin with {first}); choose another file"
