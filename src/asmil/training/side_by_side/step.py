"""The steps of R trainings at once: every training takes a bag of its own, and some may wait.

A training that waits is not changed: its weights, moments, EMA copies, buffers and generator stay the same. The
gradient of the sum of the losses contains the gradient of each, since no training depends on the weights of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map

from asmil.errors import first_line
from asmil.models.base import Output
from asmil.models.blocks.instance_loss import labels_stacked
from asmil.models.blocks.randomness import batched_draws
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.optimization import set_lr
from asmil.training.resident import ResidentBags
from asmil.training.side_by_side.bags import CommonBags, NotSideBySide
from asmil.training.side_by_side.draws import StackedDraws
from asmil.training.side_by_side.long_steps import LongSteps, StepBag, refuse_long_steps, similar_lengths
from asmil.training.side_by_side.plain_forms import plain_forms
from asmil.training.side_by_side.rehearsal import (
    AfterStep,
    BagLoss,
    BagResult,
    Moment,
    output_of,
    plain_bag,
    rehearse,
    tensors_of,
)
from asmil.training.side_by_side.schedule import StepCost, common_steps, padded_steps
from asmil.training.side_by_side.stack import Block, RowOptimizer, Stack, StackedOptimizer

VALUES_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Memory for features during prediction; it limits how many bags are predicted together."""
MOST_WAITING = 0.25
"""If more trainings wait, the others are computed without them; otherwise all are computed, which copies no weights."""


@dataclass(frozen=True)
class Turn:
    """The bags of one step.

    numbers: the trainings that are computed, by slot; None: all, in their order
    active: the slot of each training that takes the step
    labels: the class of the bag of each training that takes the step
    bags: the bag of each slot, by number in the pool
    targets: n x 1, the target of each slot
    rows: tiles of each bag, including padding
    padded: whether there is padding
    """

    numbers: Tensor | None
    active: dict[int, int]
    labels: dict[int, int]
    bags: Sequence[int]
    targets: Tensor
    rows: int
    padded: bool


class StackedSteps:
    """The steps of R trainings; raises `NotSideBySide` if they cannot be taken at once.

    Every trainer must be prepared (started or resumed). A training that has ended stays in the stack and takes no step.

    train: the training bags of each training
    pool: where the bags are held
    obstacle: why steps are not recorded as CUDA graphs; None if they are
    by_input: see `Stack`
    """

    obstacle: str | None = "its operations are started one by one"
    by_input = True

    def __init__(self, trainers: Sequence[Trainer], train: Sequence[LabeledBags], pool: ResidentBags) -> None:
        self.trainers, self.train = trainers, train
        self.device = trainers[0].device
        self.bags = CommonBags(pool, train, trainers[0].model)
        self._numbers = [self.bags.numbers(part.bags) for part in train]
        self._targets = [
            trainer.task.unfitted_targets(part.targets) for trainer, part in zip(trainers, train, strict=True)
        ]
        has_classes = trainers[0].task.kind == "classification"
        self._labels = [part.targets.tolist() if has_classes else [0] * len(part.targets) for part in train]
        self._steps = [trainer.progress.step for trainer in trainers]
        self._predicted: list[dict[int, Tensor]] = [{} for _ in trainers]
        self._described: list[dict[int, Output]] = [{} for _ in trainers]
        model = trainers[0].model
        self._fewest, self._cost = model.padding_from, StepCost.of(model, self.device.type)
        self._rows_of = model.padded_rows if model.pads_to_shapes else None
        self._bags_per_step = trainers[0].settings.bags_per_step
        orders = [trainer.epoch_order(part) for trainer, part in zip(trainers, train, strict=True)]
        of_all = [trainer.epochs * self._per_epoch(order) for trainer, order in zip(trainers, orders, strict=True)]
        self._all_steps = torch.tensor(of_all, dtype=torch.float64, device=self.device)
        firsts = [order[0] for order in orders]
        first_bags = [numbers[first] for numbers, first in zip(self._numbers, firsts, strict=True)]
        features = [self.bags.alone(bag, number) for number, bag in enumerate(first_bags)]
        targets = [self._target(number, first).to(self.device) for number, first in enumerate(firsts)]
        n_classes = 1 + max(max(labels) for labels in self._labels)
        classes = [torch.full_like(targets[0], label) for label in range(n_classes)] if has_classes else targets[:1]
        self._moments = list(zip(self._steps, of_all, strict=True))
        self.rehearsal = rehearse(trainers, features, targets, self._moments, classes, self._shortest_and_longest())
        self.form = self._build_form()
        self.after_step = AfterStep(self.form.model)
        self.draws = self._build_draws(features[0], targets[0])
        self.stack = Stack(trainers, self.rehearsal, self._build_optimizer, self.by_input)
        self._long_steps = LongSteps(self.form, self.draws, self.bags, self.stack, self._fewest)
        if self._bags_per_step > 1:
            refuse_long_steps(self.rehearsal)
        self._check(firsts)
        self.stack.bind(self.form)

    def _shortest_and_longest(self) -> list[Tensor]:
        """The features of two bags, as the training that has them sees them."""
        sizes = self.bags.pool.sizes
        owned = [(sizes[bag], bag, number) for number, bags in enumerate(self._numbers) for bag in bags]
        return [self.bags.alone(bag, number) for _, bag, number in (min(owned), max(owned))]

    def _build_form(self) -> BagLoss:
        return self.rehearsal.form

    def _build_draws(self, like: Tensor, target: Tensor) -> StackedDraws:
        return StackedDraws(self.form, [trainer.generator for trainer in self.trainers], like, target)

    def _build_optimizer(
        self, blocks: Sequence[Block], optimizers: Sequence[torch.optim.Optimizer]
    ) -> StackedOptimizer:
        self._optimizer = RowOptimizer(blocks, optimizers)
        return self._optimizer

    def run_epoch(self, due: Sequence[Trainer]) -> None:
        """The steps of one epoch of some of the trainings."""
        started = time.monotonic()
        orders = [
            trainer.epoch_order(part) if trainer in due else []
            for trainer, part in zip(self.trainers, self.train, strict=True)
        ]
        for predicted, described in zip(self._predicted, self._described, strict=True):
            predicted.clear()
            described.clear()
        self.form.train()
        with self._training_arithmetic():
            losses = self._take_steps(orders) if self._bags_per_step == 1 else self._take_long_steps(orders)
        for number, (trainer, order) in enumerate(zip(self.trainers, orders, strict=True)):
            if trainer not in due:
                continue
            per_epoch = self._per_epoch(order)
            self._steps[number] += per_epoch
            if trainer.folder is not None:
                self.stack.share_moments(number)
            trainer.progress.part_names = self.form.part_names
            set_lr(trainer.optimizer, trainer.lr_factor(self._steps[number] - 1, per_epoch))
            trainer.note_epoch(losses[number].double(), order, self.train[number], time.monotonic() - started)

    def _take_steps(self, orders: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """Take the steps of an epoch; return the parts of the losses of each training, bags x P."""
        per_epoch, steps = list(map(self._per_epoch, orders)), list(self._steps)
        noted: list[list[int]] = [[] for _ in orders]
        losses: list[Tensor] = []
        taken = 0
        for turn in self._turns(orders):
            losses.append(self._step(turn, steps, per_epoch))
            for number, slot in turn.active.items():
                noted[number].append(taken + slot)
            taken += len(turn.bags)
        values = torch.cat(losses)
        return [values[own] for own in noted]

    def _take_long_steps(self, orders: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """The same for steps of several bags."""
        per_epoch, steps = list(map(self._per_epoch, orders)), list(self._steps)

        def step_bag(number: int, position: int, index: int) -> StepBag:
            bag = self._numbers[number][index]
            return StepBag(number, position, bag, self.bags.pool.sizes[bag], self._target(number, index))

        def update(gradients: Mapping[str, Tensor], slots: dict[int, int]) -> None:
            # all classes reach the same weights
            self._update(gradients, slots, dict.fromkeys(slots, 0), steps, per_epoch)

        bags = [[step_bag(number, *place) for place in enumerate(order)] for number, order in enumerate(orders)]
        values, noted = self._long_steps.take(
            bags, self._bags_per_step, update, lambda numbers: self._moment(numbers, steps)
        )
        return [values[own] for own in noted]

    def _per_epoch(self, order: Sequence[int]) -> int:
        """The number of steps of an epoch."""
        return -(-len(order) // self._bags_per_step)

    # Which bags

    def _turns(self, orders: Sequence[Sequence[int]]) -> Iterator[Turn]:
        """The steps of an epoch, given the order of bags of each training."""
        position = [0] * len(orders)
        for active in self._schedule(orders):
            chosen = {number: orders[number][position[number]] for number in active}
            for number in active:
                position[number] += 1
            yield self._turn(chosen)

    def _schedule(self, orders: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """The trainings that take each step."""
        bags = [[numbers[i] for i in order] for numbers, order in zip(self._numbers, orders, strict=True)]
        if any(part.own_order is not None for part in self.train):  # parts of one common order
            return (active for _, active in common_steps(bags))
        lengths = [[self.bags.pool.sizes[bag] for bag in own] for own in bags]
        if self._fewest is None:
            return (active for _, active in common_steps(lengths))
        return padded_steps(lengths, self._fewest, self._cost)

    def _target(self, number: int, index: int) -> Tensor:
        """The target of a training bag, 1 x ..., in the memory of the CPU."""
        return torch.as_tensor(self._targets[number][index : index + 1])

    def _turn(self, chosen: Mapping[int, int]) -> Turn:
        """The step of some trainings, each with one of its training bags."""
        count, sizes = len(self.trainers), self.bags.pool.sizes
        everyone = count - len(chosen) <= MOST_WAITING * count
        slots = list(range(count)) if everyone else list(chosen)
        someone = next(iter(chosen))
        # a training that is only computed because copying the weights of the others takes longer gets any bag
        taken = [(number, chosen[number]) if number in chosen else (someone, chosen[someone]) for number in slots]
        bags = [self._numbers[number][i] for number, i in taken]
        targets = torch.stack([self._target(number, i) for number, i in taken]).to(self.device)
        labels = {number: self._labels[number][i] for number, i in chosen.items()}
        numbers = None if everyone else torch.tensor(slots, device=self.device)
        active = {number: slot for slot, number in enumerate(slots) if number in chosen}
        rows = max(sizes[bag] for bag in bags)
        return Turn(numbers, active, labels, bags, targets, rows, min(sizes[bag] for bag in bags) < rows)

    # One step

    def _step(self, turn: Turn, steps: list[int], per_epoch: Sequence[int]) -> Tensor:
        """Take a step; return the parts of the losses of all slots, n x P; steps: see `_update`."""
        trained, fixed = self.stack.of(turn.numbers)
        features, mask = self._features(turn)
        moment = self._moment(turn.numbers, steps)
        result = self._losses(features, mask, turn.targets, self._drawn(turn), trained | fixed, moment)
        gradients = dict(zip(trained, torch.autograd.grad(result.loss.sum(), list(trained.values())), strict=True))
        active = self._stepping(turn.active)
        self.stack.set_fixed(result.moved, active, turn.numbers)
        if self.rehearsal.started and min(steps[number] for number in turn.active) == 0:
            first = torch.tensor([step == 0 for step in steps], device=self.device) & active
            self.stack.set_fixed(self.rehearsal.started, first)
        self._update(gradients, turn.active, turn.labels, steps, per_epoch)
        if self.form.has_after_step:
            self._after_step(turn.numbers, features, mask, result.output, turn.targets, moment, active)
        return result.parts

    def _update(
        self,
        gradients: Mapping[str, Tensor],
        slots: Mapping[int, int],
        labels: Mapping[int, int],
        steps: list[int],
        per_epoch: Sequence[int],
    ) -> None:
        """The optimizer step of some trainings; see `RowOptimizer.step`.

        steps: the steps that each training has taken, which are counted here
        """
        factors = {number: self.trainers[number].lr_factor(steps[number], per_epoch[number]) for number in slots}
        self._optimizer.step(gradients, slots, labels, factors, self.trainers[0].settings.clip_norm)
        self.stack.move_copies(self._stepping(slots))
        for number in slots:
            steps[number] += 1

    def _stepping(self, numbers: Iterable[int]) -> Tensor:
        """R booleans: the trainings that take a step."""
        active = torch.zeros(len(self.trainers), dtype=torch.bool)
        active[list(numbers)] = True
        return active.to(self.device)

    def _features(self, turn: Turn) -> tuple[Tensor, Tensor | None]:
        bags = torch.tensor(turn.bags, device=self.device)
        return self.bags.together(bags, turn.rows, turn.numbers, padded=turn.padded)

    def _losses(
        self,
        features: Tensor,
        mask: Tensor | None,
        targets: Tensor,
        drawn: Sequence[Tensor],
        tensors: Mapping[str, Tensor],
        moment: Moment | None,
    ) -> BagResult:
        """The results of all slots."""

        def loss(drawn: list[Tensor], tensors: Any, *bag: Any) -> Any:
            with self.draws.handing_out(drawn):
                return functional_call(self.form, tensors, bag)

        result: BagResult = _stacked(loss)(drawn, tensors, features, mask, targets, moment)
        return result

    def _moment(self, numbers: Tensor | None, steps: Sequence[int] | Tensor) -> Moment | None:
        """The moments of some trainings (None: of all); None if the method does not depend on them.

        steps: R, the steps that each training has taken
        """
        if not self.form.has_before_step:
            return None
        moment = torch.as_tensor(steps, device=self.device), self._all_steps
        return moment if numbers is None else (moment[0][numbers], moment[1][numbers])

    def _drawn(self, turn: Turn) -> list[Tensor]:
        """The random numbers of a step."""
        takers: list[int | None] = [None] * len(turn.bags)
        for number, slot in turn.active.items():
            takers[slot] = number
        return self.draws.draw(takers, [self.bags.pool.sizes[bag] for bag in turn.bags], turn.rows)

    def _after_step(
        self,
        numbers: Tensor | None,
        features: Tensor,
        mask: Tensor | None,
        output: dict[str, Any],
        targets: Tensor,
        moment: Moment | None,
        active: Tensor,
    ) -> None:
        tensors = self._model_tensors(numbers, "")
        changed = {name: tensors[name].clone() for name in self.stack.fixed if name in tensors}

        def after_step(tensors: Any, features: Tensor, *others: Any) -> Tensor:
            functional_call(self.after_step, tensors, (features, *others))
            return features

        _stacked(after_step)(tensors | changed, features, mask, output, targets, moment)
        self.stack.set_fixed(changed, active, numbers)

    # Predictions

    def logits(self, number: int, source: BagSource) -> Tensor:
        """n x C: the logits of a training for the bags of a source; those that are missing are computed for all."""
        bags = self.bags.numbers(source)
        own = self._predicted[number]
        if any(bag not in own for bag in bags):
            self.predict([[bag for bag in bags if bag not in known] for known in self._predicted])
        return torch.stack([own[bag] for bag in bags])

    def predict_sources(self, sources: Mapping[int, BagSource]) -> None:
        """Compute the logits of some trainings, each for the bags of its own source."""
        wanted: list[list[int]] = [[] for _ in self.trainers]
        for number, source in sources.items():
            wanted[number] = self.bags.numbers(source)
        self.predict(wanted)

    def predict(self, wanted: Sequence[Sequence[int]]) -> None:
        """Compute the logits of each training for some bags, by number in the pool."""
        for number, bags, logits in self._read(lambda output: output.logits, wanted):
            self._predicted[number].update(zip(bags, logits, strict=True))

    def outputs(self, number: int, bags: Sequence[int]) -> list[Output]:
        """The outputs of a training for some bags; those that any training records are computed for all at once.

        Tensors in `extras` that belong to tiles keep their padding.
        """
        own = self._described[number]
        if any(bag not in own for bag in bags):
            recorded = [trainer.recorder.bags if trainer.recorder else [] for trainer in self.trainers]
            wanted = [[self.bags.numbers(source)[index] for source, index in chosen] for chosen in recorded]
            wanted[number] = list(bags)
            for training, read, values in self._read(tensors_of, wanted):
                for i, bag in enumerate(read):
                    self._described[training][bag] = self._output(_at(values, i), self.bags.pool.sizes[bag])
        return [own[bag] for bag in bags]

    @staticmethod
    def _output(values: dict[str, Any], tiles: int) -> Output:
        output = output_of(values)
        output.scores = None if output.scores is None else output.scores[:, :tiles]
        output.instance_logits = None if output.instance_logits is None else output.instance_logits[:tiles]
        return output

    @torch.no_grad()
    def _read(
        self, read: Callable[[Output], Any], wanted: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Sequence[int], Any]]:
        """What `read` gives for the outputs of each training for some bags: training, bags, tensors on the CPU."""
        self.form.eval()
        slots = [number for number, bags in enumerate(wanted) if bags]
        if not slots:
            return
        numbers = torch.tensor(slots, device=self.device) if len(slots) < len(wanted) else None
        tensors = self._model_tensors(numbers, "model.")

        def of_bag(features: Tensor, mask: Tensor | None, tensors: dict[str, Tensor]) -> Any:
            return read(functional_call(self.form.model, tensors, (plain_bag(self.form.model, features, mask),)))

        def of_bags(features: Tensor, mask: Tensor | None, tensors: dict[str, Tensor]) -> Any:
            in_dims = (0, None if mask is None else 0, None)
            return torch.vmap(of_bag, in_dims=in_dims)(features, mask, tensors)

        sizes, most_rows = self.bags.pool.sizes, VALUES_AT_ONCE[self.device.type] // self.bags.pool.features.shape[1]
        own_bags = [sorted(wanted[number]) for number in slots]
        rows_of = self._rows_of or int
        for bags, padded in similar_lengths(own_bags, lambda bag: rows_of(sizes[bag]), self._fewest, most_rows):
            rows = max(rows_of(sizes[bag]) for own in bags for bag in own)
            with self._stacked_arithmetic():
                features, mask = self.bags.together(
                    torch.tensor(bags, device=self.device), rows, numbers, padded=padded or rows_of is not int
                )
                values = tree_map(Tensor.cpu, _stacked(of_bags)(features, mask, tensors))
            for slot, own in enumerate(bags):
                yield slots[slot], own, _at(values, slot)

    def _model_tensors(self, numbers: Tensor | None, without: str) -> dict[str, Tensor]:
        """The tensors of the models of some trainings, n x ..., without gradients; their names without a prefix."""
        trained, fixed = self.stack.of(numbers)
        return {
            name.removeprefix(without): value.detach()
            for name, value in (trained | fixed).items()
            if name.startswith("model.")
        }

    # Setting up

    def _check(self, firsts: Sequence[int]) -> None:
        """Raise unless all trainings at once reproduce the losses that each had for its first bag alone."""
        rewind = self.draws.rewound()
        close = 3e-2 if self.trainers[0].autocast else 1e-3
        try:
            for active in self._schedule([[first] for first in firsts]):
                turn = self._turn({number: firsts[number] for number in active})
                trained, fixed = self.stack.of(turn.numbers)
                with self._training_arithmetic():
                    drawn, moment = self._drawn(turn), self._moment(turn.numbers, self._steps)
                    features, mask = self._features(turn)
                    result = self._losses(features, mask, turn.targets, drawn, trained | fixed, moment)
                    if self.form.has_after_step:
                        nobody = self._stepping([])
                        self._after_step(turn.numbers, features, mask, result.output, turn.targets, moment, nobody)
                together = result.loss.detach()[list(turn.active.values())]
                alone = self.rehearsal.losses[list(turn.active)]
                if not self.draws.as_plain:
                    rewind()
                    alone = self._losses_alone(turn)
                if not torch.allclose(together, alone, rtol=close, atol=close / 10, equal_nan=True):
                    worst = int((together - alone).abs().nan_to_num(torch.inf).argmax())
                    raise NotSideBySide(
                        "all trainings at once gave different losses than each training alone "
                        f"({float(together[worst]):.6g} and {float(alone[worst]):.6g})"
                    )
            self.predict([[numbers[first]] for numbers, first in zip(self._numbers, firsts, strict=True)])
        except (NotSideBySide, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:  # a user's own method may fail in any way
            raise NotSideBySide(f"torch cannot batch it: {first_line(error)}") from error
        finally:
            rewind()
            for own_predictions in self._predicted:
                own_predictions.clear()

    @torch.no_grad()
    def _losses_alone(self, turn: Turn) -> Tensor:
        """The losses of a step, computed one by one with the same random numbers."""
        trained, fixed = self.stack.of(turn.numbers)
        tensors, drawn, losses = trained | fixed, self._drawn(turn), []
        for number, slot in turn.active.items():
            own = [numbers[slot] for numbers in self.draws.without_padding(drawn, self._tiles(turn, slot))]
            bag = self.bags.alone(turn.bags[slot], number)
            with self.draws.handing_out(own):
                arguments = (bag, None, turn.targets[slot], self._moments[number])
                losses.append(
                    functional_call(self.form, {name: value[slot] for name, value in tensors.items()}, arguments)[0]
                )
        return torch.stack(losses)

    def _tiles(self, turn: Turn, slot: int) -> int:
        return self.bags.pool.sizes[turn.bags[slot]]

    def _training_arithmetic(self) -> AbstractContextManager[None]:
        """A block in which training steps are computed."""
        return self._stacked_arithmetic()

    @contextmanager
    def _stacked_arithmetic(self) -> Iterator[None]:
        """A block in which stacked operations are computed.

        Without oneDNN, whose products of many small matrices take twice as long as those of the BLAS library.
        """
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
        try:
            with plain_forms():
                yield
        finally:
            torch.backends.mkldnn.enabled = before


def _at(values: Any, index: int) -> Any:
    """Stacked tensors at an index of their first axis."""
    return tree_map(lambda value: value[index], values)


def _stacked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function over the first axis of all its arguments; an argument may be None."""

    def stacked(*arguments: Any) -> Any:
        in_dims = tuple(None if argument is None else 0 for argument in arguments)
        with batched_draws(), labels_stacked():
            return torch.vmap(function, in_dims=in_dims, randomness="same")(*arguments)

    return stacked
