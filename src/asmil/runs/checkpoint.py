"""Checkpoints: tensors as safetensors, everything else as JSON, without pickle.

The JSON state is also stored in the header of the safetensors file, so that tensors and state stay consistent if a
process is killed between two files; the separate JSON file is for people and other programs.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from asmil.errors import AsmilError
from asmil.files import replacing, write_json
from asmil.settings.documents import one_line

Count = Annotated[int, Field(ge=0)]
Executor = Literal["plain", "graphed", "fused", "side_by_side"]
DIGEST = "digest"
"""Key in the header's state: the digest that the content is compared with when the file is loaded."""
_OF_0_1 = {f"embedding.{leaf}": f"embedding.layers.0.{leaf}" for leaf in ("weight", "bias")}
"""Tensors that had a different name in version 0.1."""
_REMEDY = "delete it and run the train command again"


@dataclass
class Progress:
    """The progress of a training, as stored in checkpoints.

    stage: index of the method's training stage
    stage_start: number of epochs done when the stage began
    epoch: complete epochs, over all stages
    position: bags done in the current epoch
    step: optimizer steps done in this stage
    part_names: the parts of the loss, in the order in which they are recorded
    seconds: time spent on the current epoch
    best: the best epoch so far in this stage, its score (None: none yet, or not chosen on validation data) and its loss
    threads: number of threads, which affects rounding, so that it stays the same when the training is resumed
    executor: how steps are computed, see `training.executor`
    processes: number of processes that share the steps
    finished: whether the training and its predictions are done; the checkpoint then contains no tensors
    """

    stage: Count = 0
    stage_start: Count = 0
    epoch: Count = 0
    position: Count = 0
    step: Count = 0
    part_names: list[str] = field(default_factory=list)
    seconds: FiniteFloat = 0.0
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": 0, "score": None})
    threads: PositiveInt = field(default_factory=torch.get_num_threads)
    executor: Executor = "plain"
    processes: PositiveInt = 1
    finished: bool = False

    def next_stage(self) -> Progress:
        kept = {name: getattr(self, name) for name in ("epoch", "threads", "executor", "processes")}
        return Progress(stage=self.stage + 1, stage_start=self.epoch, **kept)

    def as_json(self) -> dict[str, Any]:
        """As stored in a checkpoint; without `processes` if there is only one."""
        return {name: value for name, value in asdict(self).items() if name != "processes" or value > 1}

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> Progress:
        """From the state of a checkpoint, which also contains other keys."""
        added = ("threads", "executor", "processes", "finished")  # not in checkpoints of earlier versions
        known = {name: state[name] for name in Progress.__dataclass_fields__ if name in state or name not in added}
        return TypeAdapter(Progress).validate_python(known)


class CheckpointStore:
    """The last state of a training, to resume from, and the best weights so far; in memory if there is no folder.

    seconds: minimum time between two checkpoints, unless one is forced
    """

    def __init__(self, folder: Path | None, method: str, device: torch.device, seconds: float) -> None:
        self.folder = None if folder is None else folder / "checkpoints"
        self.method = method
        self.device = device
        self.seconds = seconds
        self._saved_at = time.monotonic()
        self._best: dict[str, Tensor] = {}
        self._unwritten: dict[str, Any] | None = None

    def is_due(self) -> bool:
        return self.folder is not None and time.monotonic() - self._saved_at >= self.seconds

    def make_due(self) -> None:
        """Make a checkpoint due, whenever the last one was."""
        self._saved_at = -math.inf

    def save_last(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Write the state to resume from, and before it the best weights that it refers to."""
        if self.folder is None:
            return
        if self._unwritten is not None:
            save_checkpoint(self.folder / "best.safetensors", self._best, self._unwritten)
            self._best, self._unwritten = {}, None
        state = {"method": self.method, "device": self.device.type, **progress}
        save_checkpoint(self.folder / "last.safetensors", tensors, state)
        self._saved_at = time.monotonic()

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any], Path] | None:
        """Tensors, state and file to resume from, or None; the training must have started on this kind of device."""
        if self.folder is None or not (path := self.folder / "last.safetensors").exists():
            return None
        tensors, state = load_checkpoint(path)
        started_on = state.get("device")
        if started_on != self.device.type:
            raise AsmilError(
                f"{path}: this training was started on {started_on} and cannot resume on {self.device.type} "
                f"with the same random numbers; set training.device={started_on}, or give another --out"
            )
        return tensors, state, path

    def keep_best(self, model: nn.Module, best: Mapping[str, Any]) -> None:
        """Keep the current weights of the model as the best ones; `save_last` writes them."""
        self._best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self._unwritten = {"method": self.method, **best}

    def load_best(self, model: nn.Module) -> None:
        """Load the best weights into the model, and set it to eval mode."""
        if self.folder is None:
            model.load_state_dict(self._best)
        else:
            path = self.folder / "best.safetensors"
            restore_model(model, load_checkpoint(path)[0], path)
        model.eval()


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write `path` (safetensors) and the JSON state next to it, each atomically."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    text = json.dumps({**state, DIGEST: digest(plain, json.loads(json.dumps(state)))})
    with replacing(path) as partial:
        partial.write_bytes(save(plain, metadata={"state": text}))
    write_json(path.with_suffix(".json"), state)


def drop_training_state(training: Path) -> None:
    """Remove what a finished training no longer needs: only the progress of its last checkpoint is kept.

    The weights are in `best.safetensors`. An unreadable checkpoint is left unchanged, for `asmil check`.
    """
    path = training / "checkpoints" / "last.safetensors"
    if not path.exists():
        return
    with suppress(AsmilError):
        tensors, state = load_checkpoint(path)
        finished = {**state, "finished": True}
        if tensors:
            save_checkpoint(path, {}, finished)
        else:  # write again: a process killed between the two files leaves the old state
            write_json(path.with_suffix(".json"), finished)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a checkpoint; a file that has changed since it was written is an error.

    Checkpoints of earlier versions have no digest and are read without this check.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            state = json.loads((file.metadata() or {})["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise AsmilError(f"{path}: the checkpoint does not exist; finish the run with `asmil train`") from None
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, RecursionError) as error:
        raise _unreadable(path, one_line(error)) from None
    if not isinstance(state, dict):
        raise _unreadable(path, "its state is not a mapping")
    noted = state.pop(DIGEST, None)
    if noted is not None and noted != digest(tensors, state):
        raise _unreadable(path, "the content does not match its digest, so the file is damaged")
    return tensors, state


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Turn errors that are raised while a checkpoint is restored into errors that name the checkpoint."""
    try:
        yield
    except AsmilError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _unreadable(path, f"its state does not belong to this training: {one_line(error)}") from None


def _unreadable(path: Path, why: str) -> AsmilError:
    return AsmilError(f"{path}: not a readable asmil checkpoint ({why}); {_REMEDY}")


def digest(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> str:
    """SHA-256 of the state and of all tensors: names, types, shapes and bytes."""
    checksum = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        checksum.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


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
    """The inverse of `optimizer_tensors`; ValueError for tensors of a different optimizer."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        if int(index) >= len(parameters) or tensor.shape not in (parameters[int(index)].shape, torch.Size()):
            raise ValueError(f"the optimizer has no {name} of shape {tuple(tensor.shape)}")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load weights; an error names the first tensor of a different method or size, or with non-finite values."""
    ours = model.state_dict()
    tensors = {_OF_0_1.get(name, name) if name not in ours else name: tensor for name, tensor in tensors.items()}
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
    """Raise if a tensor has values that are not finite in float32, the precision of models; names the first tensor."""
    numbers = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    broken = sorted(name for name, tensor in numbers.items() if not bool(tensor.isfinite().all()))
    if broken:
        raise AsmilError(
            f"{path}: {len(broken)} of its tensors contain values that are not finite (first: {broken[0]}); "
            "restore the file, or delete it and train again"
        )
