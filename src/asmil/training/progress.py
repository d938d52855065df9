"""Where a training stands, as it is written into checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat, PositiveInt, TypeAdapter

Count = Annotated[int, Field(ge=0)]
Executor = Literal["plain", "graphed", "fused"]


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
    best: the epoch chosen so far in this stage, its score (None: none yet, or not chosen by validation) and its loss
    threads: with which the training began, and goes on: sums of other numbers of threads have other bits
    executor: who takes the steps, see `training.executor`
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

    def next_stage(self) -> Progress:
        """The beginning of the stage after this one."""
        return Progress(
            stage=self.stage + 1, stage_start=self.epoch, epoch=self.epoch, threads=self.threads, executor=self.executor
        )

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_json(state: Mapping[str, Any]) -> Progress:
        """From a checkpoint, whose state holds other things as well."""
        # checkpoints of earlier versions do not note these
        added = ("threads", "executor")
        known = {name: state[name] for name in Progress.__dataclass_fields__ if name in state or name not in added}
        return TypeAdapter(Progress).validate_python(known)
