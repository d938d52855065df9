"""The steps of R trainings at once on a GPU, each recorded as a CUDA graph for its number of slots and rows.

Everything that differs between steps is read on the device: the tables of an epoch say which training takes its next
bag in which slot, and kernels look up the bag, its class, the learning rate and the random numbers. An epoch is
therefore only a sequence of replays. Where a step cannot be recorded, the same operations are started one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.resident import ResidentBags
from asmil.training.side_by_side.bags import rows_of, standardized
from asmil.training.side_by_side.counted_draws import CountedDraws
from asmil.training.side_by_side.draws import StackedDraws
from asmil.training.side_by_side.kernels import begin_kernel, end_kernel, gather_kernel
from asmil.training.side_by_side.passes import single_passes
from asmil.training.side_by_side.plain_forms import replaced
from asmil.training.side_by_side.rehearsal import BagLoss
from asmil.training.side_by_side.schedule import RecordedTurn, recorded_turns
from asmil.training.side_by_side.stack import Block, StackedOptimizer
from asmil.training.side_by_side.step import StackedSteps
from asmil.training.side_by_side.table_adam import TableAdam

FEW = 8
"""Slots of a step of bags that cannot be padded; few trainings wait for a bag of the same length."""
GATHERED_ROWS, GATHERED_WIDTH = 16, 128


class Shape(NamedTuple):
    """The shape of a recorded step: slots, rows of every bag, and whether there may be padding."""

    slots: int
    rows: int
    padded: bool


class Slots:
    """What a step knows of its slots, one value each; see `kernels.py`."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.training, self.bag, self.target, self.seed = torch.zeros(4, count, dtype=torch.int64, device=device)
        self.takes = torch.zeros(count, dtype=torch.int8, device=device)
        self.factor = torch.zeros(count, device=device)
        self.one = torch.ones(count, device=device)

    def first(self, count: int) -> Slots:
        """Some of the slots, as views."""
        some = object.__new__(Slots)
        some.__dict__ = {name: values[:count] for name, values in vars(self).items()}
        return some


class RecordedSteps(StackedSteps):
    """The steps of R trainings; on a GPU they are recorded, if the method allows it."""

    draws: CountedDraws
    by_input = False

    def __init__(self, trainers: Sequence[Trainer], train: Sequence[LabeledBags], pool: ResidentBags) -> None:
        super().__init__(trainers, train, pool)
        self.obstacle = None if self.device.type == "cuda" else f"the device is {self.device.type}"
        count, device = len(trainers), self.device
        orders = [trainer.epoch_order(part) for trainer, part in zip(trainers, train, strict=True)]
        self._longest = max(len(order) for order in orders)
        # kept, since a recorded step reads them even if the pool grows
        self._stored = pool.features, pool.offsets, pool.lengths, self.bags.tables
        self._slots = Slots(count, device)
        self._turn_number = torch.zeros(1, dtype=torch.int64, device=device)
        self._schedule_table = torch.zeros(sum(map(len, orders)), count, dtype=torch.int32, device=device)
        self._positions = torch.zeros(count, dtype=torch.int64, device=device)
        self._order, self._classes = torch.zeros(2, count, self._longest, dtype=torch.int64, device=device)
        self._factors = torch.zeros(count, self._longest, device=device)
        self._noted = torch.zeros(count, self._longest, len(self.form.part_names), device=device)
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        if self.obstacle is None:
            self._memory = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream(device)
            self._try_recording(orders)

    def _build_form(self) -> BagLoss:
        form = super()._build_form()
        self._tf32 = form.gradients.autocast and self.trainers[0].settings.precision == "auto"
        if self._tf32:
            form.gradients = replace(form.gradients, autocast=False)
        return form

    @contextmanager
    def _training_arithmetic(self) -> Iterator[None]:
        """Products in TF32 instead of bf16: more accurate, and converting all weights takes longer than it saves."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = before or self._tf32
        try:
            with self._stacked_arithmetic(), replaced(single_passes(self.draws)):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _build_draws(self, like: Tensor, target: Tensor) -> StackedDraws:
        return CountedDraws(self.form, self.trainers, like, target)

    def _build_optimizer(
        self, blocks: Sequence[Block], optimizers: Sequence[torch.optim.Optimizer]
    ) -> StackedOptimizer:
        self._adam = TableAdam(blocks, optimizers)
        return self._adam

    def _take_steps(self, orders: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        bags = [[numbers[i] for i in order] for numbers, order in zip(self._numbers, orders, strict=True)]
        turns = self._recorded_turns(bags)
        self._begin_epoch(turns, orders, bags)
        for turn in turns:
            self._start(Shape(len(turn.due), turn.rows, turn.padded))
        losses = self._noted.cpu()
        return [losses[number, : len(order)] for number, order in enumerate(orders)]

    def _recorded_turns(self, bags: Sequence[Sequence[int]]) -> list[RecordedTurn]:
        sizes = self.bags.pool.sizes
        return recorded_turns([[sizes[bag] for bag in own] for own in bags], self._fewest, FEW, self._rows_of)

    def _begin_epoch(
        self, turns: Sequence[RecordedTurn], orders: Sequence[Sequence[int]], bags: Sequence[Sequence[int]]
    ) -> None:
        """Copy the tables of an epoch to the device."""
        schedule = np.zeros((len(turns), len(orders)), dtype=np.int32)
        for row, turn in zip(schedule, turns, strict=True):
            row[: len(turn.due)] = turn.due
        tables = torch.zeros(2, len(orders), self._longest, dtype=torch.int64)
        factors = torch.zeros(len(orders), self._longest)
        rates = cache(self._rates)
        settings = [trainer.settings for trainer in self.trainers]
        for number, order in enumerate(orders):
            taken = slice(len(order))
            tables[0, number, taken] = torch.tensor(bags[number])
            tables[1, number, taken] = torch.tensor([self._labels[number][i] for i in order])
            factors[number, taken] = torch.tensor(
                rates(settings.index(settings[number]), self._steps[number], len(order))
            )
        self._schedule_table[: len(turns)].copy_(torch.from_numpy(schedule))
        self._order.copy_(tables[0])
        self._classes.copy_(tables[1])
        self._factors.copy_(factors)
        self._positions.zero_()
        self._turn_number.zero_()

    def _rates(self, number: int, first: int, count: int) -> list[float]:
        """The factors of a training's learning rate in an epoch of `count` steps that starts at a step."""
        return [self.trainers[number].lr_factor(first + i, count) for i in range(count)]

    def _start(self, shape: Shape) -> None:
        """Start the next step of the epoch, of this shape."""
        if self.obstacle is None and shape not in self._graphs:
            self._record(shape)
        if self.obstacle is None:
            self._graphs[shape].replay()
        else:
            self._take(shape)

    def _take(self, shape: Shape) -> None:
        """The operations of a step."""
        count, slots = shape.slots, self._slots.first(shape.slots)
        begin_kernel[(1,)](
            self._turn_number, self._schedule_table, self._positions, self.draws.steps, self.draws.keys, self._order,
            self._classes, self._factors, len(self.trainers), self._longest, slots.training, slots.takes, slots.bag,
            slots.target, slots.factor, slots.seed, count, _power_of_2(count),
        )  # fmt: skip
        numbers = None if count == len(self.trainers) else slots.training
        features, mask = self._gathered(shape, numbers)
        trained, fixed = self.stack.of(numbers)
        drawn, targets = [slots.seed], slots.target.unsqueeze(1)
        moment = self._moment(numbers, self.draws.steps)
        result = self._losses(features, mask, targets, drawn, trained | fixed, moment)
        found = torch.autograd.grad(result.loss, list(trained.values()), slots.one.to(result.loss.dtype))
        gradients = dict(zip(trained, found, strict=True))
        if result.moved:
            self.stack.set_fixed(result.moved, self._active(slots, numbers), numbers)
        if self.rehearsal.started:
            first = self._active(slots, numbers) & (self.draws.steps == 0)
            self.stack.set_fixed(self.rehearsal.started, first)
        clip_norm = self.trainers[0].settings.clip_norm
        self._adam.step_slots(gradients, slots.training, slots.takes, slots.target, slots.factor, clip_norm)
        if self.stack.has_copies:
            self.stack.move_copies(self._active(slots, numbers))
        if self.form.has_after_step:
            self._after_step(numbers, features, mask, result.output, targets, moment, self._active(slots, numbers))
        reached, parts = self._adam.reached, result.parts.shape[1]
        end_kernel[(1 + len(reached),)](
            self._turn_number, self._positions, self.draws.steps, self._adam.counts, reached, slots.training,
            slots.takes, slots.target, result.parts.float().contiguous(), self._noted, len(self.trainers),
            self._longest, parts, reached.shape[1], count, _power_of_2(count),
        )  # fmt: skip

    def _gathered(self, shape: Shape, numbers: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features, n x rows x (D + T), and which rows are tiles; None without padding."""
        stored, offsets, lengths, tables = self._stored
        width = stored.shape[1]
        features = torch.empty(shape.slots, shape.rows, width, device=self.device)
        mask = torch.empty(shape.slots, shape.rows, dtype=torch.bool, device=self.device)
        gather_kernel[(shape.slots, -(-shape.rows // GATHERED_ROWS))](
            stored, offsets, lengths, self._slots.bag, features, mask.view(torch.int8), shape.rows, width,
            GATHERED_ROWS, GATHERED_WIDTH,
        )  # fmt: skip
        if self.bags.scaling is not None:
            center, scale = (part if numbers is None else part[numbers] for part in self.bags.scaling)
            features = standardized(features, center.unsqueeze(1), scale.unsqueeze(1))
        if tables.shape[1]:
            columns = rows_of(tables, offsets, self._slots.bag[: shape.slots], shape.rows)
            features = torch.cat([features, columns], dim=-1)
        return features, mask if shape.padded else None

    def _active(self, slots: Slots, numbers: Tensor | None) -> Tensor:
        """R booleans: the trainings that take the step."""
        if numbers is None:
            return slots.takes.bool()
        taking = torch.zeros(len(self.trainers), dtype=torch.int8, device=self.device)
        return taking.index_put((numbers,), slots.takes, accumulate=True).bool()

    # Recording

    def _try_recording(self, orders: Sequence[Sequence[int]]) -> None:
        """Record the first step, to find out whether it is possible."""
        firsts = [[numbers[order[0]]] for numbers, order in zip(self._numbers, orders, strict=True)]
        turn = self._recorded_turns(firsts)[0]
        self.form.train()
        with self._training_arithmetic():
            self._record(Shape(len(turn.due), turn.rows, turn.padded))

    def _record(self, shape: Shape) -> None:
        """Record a step; sets `obstacle` if this is not possible."""
        self._take_in_vain(shape)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()  # graphs have memory of their own, so that this would be needed twice
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._side):
                # other threads may use the GPU at the same time to read features
                graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
                try:
                    self._take(shape)
                finally:
                    graph.capture_end()
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.obstacle = str(error).splitlines()[0]
            return
        self._graphs[shape] = graph

    def _take_in_vain(self, shape: Shape) -> None:
        """A step that no training takes: it compiles kernels and sets up libraries, and changes nothing."""
        changed = self._schedule_table[0], self._turn_number
        before = [tensor.clone() for tensor in changed]
        self._turn_number.zero_()
        self._schedule_table[0] = -1 - torch.arange(len(self.trainers), dtype=torch.int32, device=self.device)
        self._take(shape)
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)


def _power_of_2(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
