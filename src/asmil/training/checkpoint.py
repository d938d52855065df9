"""Checkpoints: tensors as safetensors, everything else as JSON; nothing is pickled.

The JSON state also travels in the header of the safetensors file, so that tensors and state cannot come apart when
a process is killed between two files; the file beside it is for people and other programs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from asmil.documents import one_line
from asmil.errors import AsmilError
from asmil.files import replacing, write_json

DIGEST = "digest"
"""In the state of the header: what the content of the file is compared with when it is loaded."""
_REMEDY = "delete it and give the train command again"


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write `path` (safetensors) and the JSON state beside it, each whole or not at all."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    text = json.dumps({**state, DIGEST: _digest(plain, json.loads(json.dumps(state)))})
    with replacing(path) as partial:
        partial.write_bytes(save(plain, metadata={"state": text}))
    write_json(path.with_suffix(".json"), state)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a checkpoint; a file whose content has changed since it was written is refused.

    Checkpoints of earlier versions carry no digest and are read as they are.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            state = json.loads((file.metadata() or {})["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise AsmilError(f"{path}: there is no such checkpoint; finish the run with `asmil train`") from None
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, RecursionError) as error:
        raise _unreadable(path, one_line(error)) from None
    if not isinstance(state, dict):
        raise _unreadable(path, "its state is not a mapping")
    noted = state.pop(DIGEST, None)
    if noted is not None and noted != _digest(tensors, state):
        raise _unreadable(path, "its content does not fit its digest, so it is damaged")
    return tensors, state


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """A block that gives a training the content of a checkpoint; what does not fit is an error that names it."""
    try:
        yield
    except AsmilError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _unreadable(path, f"its state is not that of this training: {one_line(error)}") from None


def _unreadable(path: Path, why: str) -> AsmilError:
    return AsmilError(f"{path}: not a readable asmil checkpoint ({why}); {_REMEDY}")


def _digest(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    """SHA-256 of the state and of all tensors: names, types, shapes and bytes."""
    found = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under `prefix.name`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer as flat names: parameter index, then key."""
    return {
        f"{index}.{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in optimizer.state_dict()["state"].items()
        for key, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`; raises ValueError for tensors of another optimizer."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        if int(index) >= len(parameters) or tensor.shape not in (parameters[int(index)].shape, torch.Size()):
            raise ValueError(f"the optimizer has no {name} of shape {tuple(tensor.shape)}")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load weights; those of another method or size, or that are not finite, are an error that names the first."""
    ours = model.state_dict()
    missing, foreign = sorted(ours.keys() - tensors.keys()), sorted(tensors.keys() - ours.keys())
    misshapen = sorted(k for k in ours.keys() & tensors.keys() if ours[k].shape != tensors[k].shape)
    if missing or foreign or misshapen:
        first = (missing or foreign or misshapen)[0]
        raise AsmilError(
            f"{path}: its weights are not those of this {type(model).__name__} ({len(missing)} missing, "
            f"{len(foreign)} unknown, {len(misshapen)} of another shape; first: {first}); "
            "it belongs to another method or configuration"
        )
    refuse_not_finite(tensors, path)
    model.load_state_dict(tensors)


def refuse_not_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise if a tensor holds a value that is not finite; the error names the first."""
    broken = sorted(k for k, tensor in tensors.items() if not bool(tensor.isfinite().all()))
    if broken:
        raise AsmilError(
            f"{path}: {len(broken)} of its tensors hold values that are not finite (first: {broken[0]}); "
            "restore the file, or delete it and train again"
        )
