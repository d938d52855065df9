"""Train many small models side by side: one loop per training, with the steps of all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor

from asmil.machine.arithmetic import exact_arithmetic
from asmil.machine.timing import timed
from asmil.models.blocks.tile_passes import HAS_TRITON
from asmil.models.inference import infer
from asmil.training.honored import SIDE_BY_SIDE
from asmil.training.interruption import advanced, stop_requests
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.recording import Said
from asmil.training.resident import ResidentBags
from asmil.training.side_by_side.bags import NotSideBySide
from asmil.training.side_by_side.step import StackedSteps


def fit_side_by_side(
    trainers: Sequence[Trainer],
    train: Sequence[LabeledBags],
    val: Sequence[LabeledBags | None],
    pool: ResidentBags | None = None,
    on_start: Callable[[], None] = lambda: None,
    *,
    recorded: bool = False,
) -> None:
    """Train all to the end, like `Trainer.fit`; raises `NotSideBySide`, before any step, if this is not possible.

    The trainers have the same settings, except for those in `MAY_DIFFER`. Each has its own seed, its own training and
    validation bags and its own order of bags; trainings whose orders are parts of a common order share the most steps.

    pool: where the bags are held, and may be already
    on_start: called before the first step
    recorded: also raise if steps cannot be recorded as CUDA graphs
    """
    first_stage = len(trainers[0].stages)
    for trainer, part in zip(trainers, val, strict=True):
        reason = SIDE_BY_SIDE.reason(trainer.config, trainer.stages[-1].model, trainer.task)
        if reason is not None:
            raise NotSideBySide(reason)
        trainer.prepare(part, executor="side_by_side")
        first_stage = min(first_stage, trainer.progress.stage)
    if any(part.weights is not None for part in train):
        raise NotSideBySide("bags have weights of their own")
    if pool is None:
        pool = ResidentBags(trainers[0].model.in_features, trainers[0].device, torch.float32)
    # without a folder nothing is saved, so that a training is interrupted at once
    stops = nullcontext(Event()) if all(trainer.folder is None for trainer in trainers) else stop_requests()
    with exact_arithmetic(trainers[0].threads), stops as stop:
        for later in range(first_stage + 1, len(trainers[0].stages)):
            _steps([trainer.at_stage(later) for trainer in trainers], train, pool, recorded)
        members = [
            _Member(trainer, own, part, trainer.session(own, part, stop.is_set))
            for trainer, own, part in zip(trainers, train, val, strict=True)
        ]
        try:
            for stage in range(first_stage, len(trainers[0].stages)):
                here = [member for member in members if member.trainer.progress.stage == stage]
                if here:
                    steps = _steps(
                        [member.trainer for member in here], [member.train for member in here], pool, recorded
                    )
                    for member in here:
                        if member.val is not None:
                            steps.bags.numbers(member.val.bags)
                    if stage == first_stage:
                        on_start()
                    _train_stage(steps, here, stage)
        finally:
            for trainer in trainers:
                trainer.evaluator = None


@dataclass
class _Member:
    """A training; `is_due`: whether its session waits for the steps of an epoch."""

    trainer: Trainer
    train: LabeledBags
    val: LabeledBags | None
    session: Iterator[None]
    is_due: bool = False


def _train_stage(steps: StackedSteps, members: Sequence[_Member], stage: int) -> None:
    """Train all to the end of a stage; those that are there early wait for the others."""
    for number, member in enumerate(members):
        member.trainer.evaluator = StackedEvaluator(steps, number)
    while True:
        asked = [(member, member.session) for member in members if not member.is_due]
        for member, _ in advanced(asked):
            member.is_due = True
        due = {
            number: member
            for number, member in enumerate(members)
            if member.is_due and member.trainer.progress.stage == stage
        }
        if not due:
            steps.stack.release()
            return
        trainers = [member.trainer for member in due.values()]
        with timed("steps"):
            steps.run_epoch(trainers)
        with timed("validation"), ExitStack() as averages:
            for trainer in trainers:
                averages.enter_context(trainer.averaged())
            steps.predict_sources({number: member.val.bags for number, member in due.items() if member.val is not None})
        with timed("checkpoints"):
            _save_together(trainers)
        for member in due.values():
            member.is_due = False


def _steps(
    trainers: Sequence[Trainer], train: Sequence[LabeledBags], pool: ResidentBags, recorded: bool
) -> StackedSteps:
    """The steps of the current stage of all trainings."""
    steps = _steps_for(trainers[0])(trainers, train, pool)
    if recorded and steps.obstacle is not None:
        raise NotSideBySide(f"its steps cannot be recorded ({steps.obstacle})")
    return steps


def _steps_for(trainer: Trainer) -> type[StackedSteps]:
    """How steps are taken: by kernels of our own on a GPU, where they can be recorded."""
    one_class_per_step = trainer.task.kind == "classification" and trainer.settings.bags_per_step == 1
    if trainer.device.type == "cuda" and HAS_TRITON and one_class_per_step:
        from asmil.training.side_by_side.recorded_steps import RecordedSteps
        from asmil.training.side_by_side.table_adam import TableAdam

        if TableAdam.can_replace(trainer.optimizer):
            return RecordedSteps
    return StackedSteps


def _save_together(trainers: Sequence[Trainer]) -> None:
    """Let all trainings save their state at the end of the same epoch, so that they resume as they were together."""
    if any(trainer.checkpoints.is_due() for trainer in trainers):
        for trainer in trainers:
            trainer.checkpoints.make_due()


class StackedEvaluator:
    """Evaluates one of the trainings; the logits of all are computed together, once per epoch."""

    def __init__(self, steps: StackedSteps, number: int) -> None:
        self.steps, self.number = steps, number
        self._stage = steps.trainers[number].stage

    def logits(self, bags: BagSource) -> Tensor:
        """Logits of all bags of a source, n x C."""
        return self.steps.logits(self.number, bags)

    def said(self, chosen: Sequence[tuple[BagSource, int]]) -> list[Said]:
        """Attention, logits and embedding of single bags, each given as a source and an index."""
        steps = self.steps
        trainer = steps.trainers[self.number]
        if steps.device.type == "cpu" or trainer.stage is not self._stage:
            bags = (bag for source, index in chosen for bag in source.stream([index]))
            return [Said.of(trainer.model, infer(trainer.model, bag, trainer.device)) for bag in bags]
        numbers = [steps.bags.numbers(source)[index] for source, index in chosen]
        return [Said.of(trainer.model, output) for output in steps.outputs(self.number, numbers)]
