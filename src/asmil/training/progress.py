"""Where a training stands, as it is written into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


@dataclass
class Progress:
    """How far a training has got.

    stage: which stage of the method's training
    stage_start: the epochs that were done when it began
    epoch: whole epochs done, over all stages
    position: bags done of the current epoch
    step: optimizer steps done in this stage
    part_names: the parts of the loss, in the order in which they are noted
    seconds: time spent on the current epoch
    best: the epoch chosen so far in this stage, and its score (None: none yet, or not chosen by validation)
    threads: with which the training began, and goes on: sums of other numbers of threads have other bits
    """

    stage: int = 0
    stage_start: int = 0
    epoch: int = 0
    position: int = 0
    step: int = 0
    part_names: list[str] = field(default_factory=list)
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=lambda: {"epoch": 0, "score": None})
    threads: int = field(default_factory=torch.get_num_threads)

    def next_stage(self) -> Progress:
        """The beginning of the stage after this one."""
        return Progress(stage=self.stage + 1, stage_start=self.epoch, epoch=self.epoch, threads=self.threads)

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> Progress:
        """From a checkpoint, whose state holds other things as well."""
        known = {name: state[name] for name in Progress.__dataclass_fields__ if name != "threads"}
        return Progress(**known, threads=state.get("threads") or torch.get_num_threads())
