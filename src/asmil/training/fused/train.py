"""Train folds and seeds together: one loop per training, the steps of a fold's seeds at once, several folds in turn."""

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
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags
from asmil.training.turns import TrainingPart, take_turns

MOST_MEMBERS = 64


def fit_fused(parts: Sequence[TrainingPart], bags: ResidentBags) -> None:
    """Train all to the end, like `Trainer.fit`; the trainings of a part take their steps at once, the parts in turn."""
    for part in parts:
        for trainer in part.trainers:
            trainer.prepare(part.val, executor="fused")
        for bag_source in part.sources:
            bags.add(bag_source)
    with exact_arithmetic(parts[0].trainers[0].threads), stop_requests() as stop:
        running = [_Running(part, bags) for part in parts]
        sessions = [
            ((own, trainer), trainer.session(own.part.train, own.part.val, stop.is_set))
            for own in running
            for trainer in own.part.trainers
        ]
        try:
            while sessions := advanced(sessions):
                due = {own: [trainer for (other, trainer), _ in sessions if other is own] for (own, _), _ in sessions}
                with timed("steps"):
                    for own, trainers in due.items():
                        own.start_epoch(trainers)
                    take_turns([own.members.steps() for own in due])
                    for own in due:
                        own.members.end_epoch()
        finally:
            for part in parts:
                for trainer in part.trainers:
                    trainer.evaluator = None


class _Running:
    """The trainings of a part that are still running, bound to buffers of matching size."""

    def __init__(self, part: TrainingPart, bags: ResidentBags) -> None:
        self.part = part
        evaluated = bags.numbers(part.train.bags)
        if part.val is not None:
            evaluated = bags.numbers(part.val.bags) + _recorded(part.trainers[0], evaluated)
        self._shared = (bags, part.train, evaluated)
        self._bind(part.trainers)

    def _bind(self, trainers: Sequence[Trainer]) -> None:
        self.members = Members(trainers, *self._shared)
        for p, trainer in enumerate(trainers):
            trainer.evaluator = MemberEvaluator(self.members, p)

    def start_epoch(self, trainers: Sequence[Trainer]) -> None:
        """Start an epoch of these trainings; others may have ended since the last one."""
        if len(trainers) < len(self.members.trainers):
            self._bind(trainers)
        self.members.start_epoch()


def _recorded(trainer: Trainer, train: list[int]) -> list[int]:
    """The training bags whose attention may be recorded."""
    return train if trainer.config.record.attention != "none" and trainer.folder is not None else []


def members_that_fit(model: MILModel, bags: ResidentBags) -> int:
    """How many trainings fit into the memory of the device in addition to these bags; at least 1."""
    assert isinstance(model, ASMIL)
    return bags.trainings_that_fit(bytes_a_member(Sizes.of(model), max(bags.sizes)), MOST_MEMBERS)
