"""Train with recorded steps: the common loop, with features on the device; the seeds of a fold at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from asmil.machine.arithmetic import exact_arithmetic
from asmil.machine.timing import timed
from asmil.models.base import MILModel
from asmil.models.batch import run_padded
from asmil.models.inference import infer
from asmil.training.graphed.step import Steps
from asmil.training.interruption import advanced, stop_requests
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.recording import Said
from asmil.training.resident import ResidentBags
from asmil.training.turns import step_bytes, take_turns

MOST_AT_ONCE = 8
"""Trainings at the same time; more would not be faster."""
EVALUATED_ROWS = 65_536
"""Rows of a batch in evaluation, including padding."""


def fit_graphed(trainers: Sequence[Trainer], pool: ResidentBags, train: LabeledBags, val: LabeledBags | None) -> None:
    """Train all to the end, like `Trainer.fit`; they share data and settings, and differ in their seeds."""
    for trainer in trainers:
        trainer.prepare(val, executor="graphed")
    for part in (train, val):
        if part is not None:
            pool.add(part.bags)
    members = [_Member(trainer, pool, train) for trainer in trainers]
    try:
        with exact_arithmetic(trainers[0].threads), stop_requests() as stop:
            sessions = [(member, member.trainer.session(train, val, stop.is_set)) for member in members]
            while sessions := advanced(sessions):
                with timed("steps"):
                    _run_epochs([member for member, _ in sessions])
    finally:
        for trainer in trainers:
            trainer.evaluator = None


class _Member:
    """A training with the steps of its current stage."""

    def __init__(self, trainer: Trainer, pool: ResidentBags, train: LabeledBags) -> None:
        self.trainer, self.pool, self.train = trainer, pool, train
        self.order: list[int] = []
        self._steps: Steps | None = None
        trainer.evaluator = ResidentEvaluator(trainer, pool)

    @property
    def steps(self) -> Steps:
        """The steps of the current stage."""
        if self._steps is None or self._steps.model is not self.trainer.model:
            self._steps = Steps(self.trainer, self.pool, self.train)
        return self._steps

    def start_epoch(self) -> Iterator[None]:
        """Start the steps of the next epoch, one with each iteration."""
        self.trainer.model.train()
        self.order = self.trainer.epoch_order(self.train)
        return self.steps.epoch(self.order)

    def end_epoch(self, seconds: float) -> None:
        """Read the losses of the epoch and count its steps."""
        self.trainer.note_epoch(self.steps.losses.double(), self.order, self.train, seconds)


def _run_epochs(members: Sequence[_Member]) -> None:
    """Run one epoch of every member; their steps are started in turn and run at the same time."""
    started = time.monotonic()
    take_turns([member.start_epoch() for member in members])
    if members[0].trainer.device.type == "cuda":
        torch.cuda.synchronize()
    for member in members:
        member.end_epoch(time.monotonic() - started)


def trainings_that_fit(model: MILModel, pool: ResidentBags, batch: int) -> int:
    """How many trainings fit into the memory of the device in addition to these bags; at least 1."""
    return pool.trainings_that_fit(step_bytes(model, batch * max(pool.sizes)), MOST_AT_ONCE)


class ResidentEvaluator:
    """Evaluates the model in training on bags on the device, in float32."""

    def __init__(self, trainer: Trainer, pool: ResidentBags) -> None:
        self.trainer = trainer
        self.pool = pool

    def logits(self, bags: BagSource) -> Tensor:
        """Logits of all bags of a source, n x C; bags of similar length are computed together."""
        numbers = self.pool.numbers(bags)
        logits: dict[int, Tensor] = {}
        for together in self._batches(numbers):
            logits |= zip(together, self._logits(together), strict=True)
        return torch.stack([logits[number] for number in numbers])

    def _batches(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """The bags by length, in groups of a limited number of rows; bags that cannot be padded are alone."""
        sizes, fewest = self.pool.sizes, self.trainer.model.batch_from
        assert fewest is not None, "settings_reason excludes other methods"
        batch: list[int] = []
        for number in sorted(set(numbers), key=lambda number: sizes[number], reverse=True):
            fits = bool(batch) and (len(batch) + 1) * sizes[batch[0]] <= EVALUATED_ROWS and sizes[number] >= fewest
            if batch and not fits:
                yield batch
                batch = []
            batch.append(number)
        if batch:
            yield batch

    def _logits(self, numbers: Sequence[int]) -> list[Tensor]:
        model, pool = self.trainer.model, self.pool
        if len(numbers) == 1:
            return [infer(model, pool.bag(numbers[0]), pool.device).logits]
        model.eval()
        with torch.inference_mode():
            features, mask = pool.padded(numbers)
            outputs, _ = run_padded(model, features, mask)
            logits = torch.stack([output.logits for output in outputs]).cpu()
        return list(logits)

    def said(self, chosen: Sequence[tuple[BagSource, int]]) -> list[Said]:
        """Attention, logits and embedding of single bags, each given as a source and an index."""
        model, pool = self.trainer.model, self.pool
        numbers = [pool.numbers(source)[index] for source, index in chosen]
        return [Said.of(model, infer(model, pool.bag(number), pool.device)) for number in numbers]
