"""Train the seeds of a fold together: one loop per seed, with the steps of all seeds at once."""

from __future__ import annotations

from collections.abc import Sequence

from asmil.machine.arithmetic import exact_arithmetic
from asmil.machine.timing import timed
from asmil.models.asmil import ASMIL
from asmil.models.base import MILModel
from asmil.training.fused.layout import Sizes
from asmil.training.fused.members import MemberEvaluator, Members
from asmil.training.fused.step import bytes_a_member
from asmil.training.interruption import advanced, stop_requests
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags

MOST_MEMBERS = 64


def fit_fused(trainers: Sequence[Trainer], bags: ResidentBags, train: LabeledBags, val: LabeledBags | None) -> None:
    """Train all to the end, like `Trainer.fit`; they share data and settings, and differ in their seeds."""
    for trainer in trainers:
        trainer.prepare(val, executor="fused")
    bags.add(train.bags)
    evaluated = bags.numbers(train.bags)
    if val is not None:
        bags.add(val.bags)
        evaluated = bags.numbers(val.bags) + _recorded(trainers[0], evaluated)
    with exact_arithmetic(trainers[0].progress.threads), stop_requests() as stop:
        running = _Running(trainers, bags, train, evaluated)
        sessions = [(trainer, trainer.session(train, val, stop.is_set)) for trainer in trainers]
        try:
            while sessions := advanced(sessions):
                with timed("steps"):
                    running.run_epoch([trainer for trainer, _ in sessions])
        finally:
            for trainer in trainers:
                trainer.evaluator = None


class _Running:
    """The trainings still running, bound to buffers of matching size."""

    def __init__(
        self, trainers: Sequence[Trainer], bags: ResidentBags, train: LabeledBags, evaluated: Sequence[int]
    ) -> None:
        self._shared = (bags, train, evaluated)
        self._bind(trainers)

    def _bind(self, trainers: Sequence[Trainer]) -> None:
        self.members = Members(trainers, *self._shared)
        for p, trainer in enumerate(trainers):
            trainer.evaluator = MemberEvaluator(self.members, p)

    def run_epoch(self, trainers: Sequence[Trainer]) -> None:
        """Run one epoch of these trainings; others may have ended since the last one."""
        if len(trainers) < len(self.members.trainers):
            self._bind(trainers)
        self.members.run_epoch()


def _recorded(trainer: Trainer, train: list[int]) -> list[int]:
    """The training bags whose attention may be recorded."""
    return train if trainer.config.record.attention != "none" and trainer.folder is not None else []


def members_that_fit(model: MILModel, bags: ResidentBags) -> int:
    """How many trainings fit into the memory of the device in addition to these bags; at least 1."""
    assert isinstance(model, ASMIL)
    return bags.trainings_that_fit(bytes_a_member(Sizes.of(model), max(bags.sizes)), MOST_MEMBERS)
