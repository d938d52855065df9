"""Where a training keeps its weights: on the disk, or in memory when it has no folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asmil.errors import AsmilError
from asmil.training import checkpoint


class Keeper:
    """The last state of a training, to go on from, and the best weights so far.

    seconds: at least so long lies between two checkpoints, unless one is forced
    """

    def __init__(self, folder: Path | None, method: str, device: torch.device, seconds: float) -> None:
        self.folder = None if folder is None else folder / "checkpoints"
        self.method = method
        self.device = device
        self.seconds = seconds
        self._saved_at = time.monotonic()
        self._best: dict[str, Tensor] = {}

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.folder is not None and time.monotonic() - self._saved_at >= self.seconds

    def save_last(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Write the state to go on from."""
        if self.folder is None:
            return
        state = {"method": self.method, "device": self.device.type, **progress}
        checkpoint.save_checkpoint(self.folder / "last.safetensors", tensors, state)
        self._saved_at = time.monotonic()

    def load_last(self) -> tuple[dict[str, Tensor], dict[str, Any], Path] | None:
        """Tensors, state and file of the state to go on from, or None; it must have been begun on this device."""
        if self.folder is None or not (path := self.folder / "last.safetensors").exists():
            return None
        tensors, state = checkpoint.load_checkpoint(path)
        begun_on = state.get("device")
        if begun_on != self.device.type:
            raise AsmilError(
                f"{path}: this training was begun on {begun_on} and cannot go on on {self.device.type} "
                f"with the same random numbers; set training.device={begun_on}, or give another --out"
            )
        return tensors, state, path

    def keep_best(self, model: nn.Module, best: Mapping[str, Any]) -> None:
        """Keep the weights that the model has now."""
        weights = model.state_dict()
        if self.folder is None:
            self._best = {name: tensor.clone() for name, tensor in weights.items()}
        else:
            checkpoint.save_checkpoint(self.folder / "best.safetensors", weights, {"method": self.method, **best})

    def load_best(self, model: nn.Module) -> None:
        """Give the model the kept weights, and put it into eval mode."""
        if self.folder is None:
            model.load_state_dict(self._best)
        else:
            path = self.folder / "best.safetensors"
            checkpoint.restore_model(model, checkpoint.load_checkpoint(path)[0], path)
        model.eval()
