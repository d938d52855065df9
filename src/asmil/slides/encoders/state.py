"""State dicts of encoders: reading them from files, matching them to networks, and hashing."""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from asmil.errors import AsmilError, first_line
from asmil.files import DAMAGED, refuse_special_file
from asmil.slides.encoders.base import EncoderEntry, State

WRAPPERS = ("state_dict", "model_state_dict", "model", "teacher")
PREFIXES = ("module.", "backbone.")
COUNTER = "num_batches_tracked"
"""Batch normalization counts batches; some files omit the count, which does not affect the result."""
DAMAGED_STATE = (*DAMAGED, SafetensorError, EOFError, AttributeError, ArithmeticError, AssertionError, struct.error)


def read_state(path: Path) -> State:
    """The tensors of a safetensors or torch file, without wrappers."""
    refuse_special_file(path)
    try:
        if is_safetensors(path):
            state = unwrapped(load_file(path))
        else:
            state = unwrapped(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise AsmilError(f"{path}: the file of weights does not exist; check the path") from None
    except IsADirectoryError:
        raise AsmilError(f"{path} is a folder; give the file of weights in it") from None
    except pickle.UnpicklingError:
        raise AsmilError(
            f"{path}: the file contains more than tensors and could run code when opened, so it is not loaded; "
            "save only its state dict (torch.save(model.state_dict(), ...)) or use safetensors"
        ) from None
    except AsmilError:
        raise
    except DAMAGED_STATE as error:
        why = first_line(error)
        raise AsmilError(f"{path}: the weights cannot be read ({why}); download or copy the file again") from None
    for name, tensor in state.items():
        # checked in float32, in which networks compute: larger float64 values are infinite there
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise AsmilError(
                f"{path}: the weights are damaged ({name} contains NaN or infinite values); download the file again"
            )
    return state


def is_safetensors(path: Path) -> bool:
    """Whether a file is in safetensors format, by its first bytes (files of weights are often renamed)."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def unwrapped(content: Any) -> State:
    """The state dict inside a checkpoint, without wrappers and without the prefixes that training adds.

    If some names begin with `backbone.`, all others are training heads and are dropped.
    """
    while isinstance(content, Mapping):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise ValueError(f"it contains a {type(content).__name__}, not a state dict")
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise ValueError("it contains no tensors")
    while prefix := next((p for p in PREFIXES if any(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return state


def empty_network(entry: EncoderEntry) -> nn.Module:
    """The network of an entry, without memory for its weights."""
    with torch.device("meta"):
        return entry.build()


def fitted(entry: EncoderEntry, published: Mapping[str, Tensor], network: nn.Module) -> State | str:
    """The published tensors with the names of our network and in float32, or a sentence about why they do not match."""
    try:
        given = dict(published) if entry.convert is None else entry.convert(published)
    except KeyError as error:
        return f"lacks {error.args[0]}"
    expected = network.state_dict()
    given = {name: tensor for name, tensor in given.items() if not name.endswith(COUNTER)}
    wanted = {name: tensor for name, tensor in expected.items() if not name.endswith(COUNTER)}
    parts = [
        *_listed("lacks", [name for name in wanted if name not in given]),
        *_listed("has besides", [name for name in given if name not in wanted]),
    ]
    misshapen = [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
    if misshapen:
        name = misshapen[0]
        parts.append(f"has {name} of {_shape(given[name])} instead of {_shape(wanted[name])}")
    if parts:
        return ", ".join(parts)
    counters = {name: torch.zeros((), dtype=torch.int64) for name in expected if name.endswith(COUNTER)}
    return counters | {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in given.items()}


def fill(network: nn.Module, state: State) -> nn.Module:
    """Load the weights into an empty network."""
    network.load_state_dict(state, assign=True)
    empty = [name for name, tensor in [*network.named_parameters(), *network.named_buffers()] if tensor.is_meta]
    if empty:
        raise RuntimeError(f"{type(network).__name__} stores {empty[0]} outside its state dict")
    return network


def state_hash(state: Mapping[str, Tensor]) -> str:
    """SHA-256 (hex) of names, shapes and float32 values, independent of order, file format and precision."""
    digest = hashlib.sha256()
    for name in sorted(state):
        if name.endswith(COUNTER):
            continue
        tensor = state[name].detach().cpu()
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _listed(verb: str, names: list[str]) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"{verb} {', '.join(names[:3])}{rest}"]


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
