"""The steps of R trainings at once: every step uses one bag, in all trainings whose turn it is.

If the bag of a step is not the next training bag of a training, nothing changes for this training: its weights,
moments, EMA copies, buffers and generator stay the same. The gradient of the sum of the losses contains the gradient of
each, since no training depends on the weights of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from asmil.models.blocks.randomness import FEW, RandomModule, batched_draws
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.optimization import set_lr
from asmil.training.resident import keys_of
from asmil.training.side_by_side.bags import CommonBags, NotSideBySide, common_steps, standardized
from asmil.training.side_by_side.plain_forms import plain_forms
from asmil.training.side_by_side.rehearsal import AfterStep, plain_bag, rehearse
from asmil.training.side_by_side.stack import Stack

VALUES_AT_ONCE = 1 << 22
"""Memory for standardized features during prediction; it limits how many bags of one length are predicted together."""


class StackedSteps:
    """The steps of R trainings; raises `NotSideBySide` if they cannot be taken at once.

    Every trainer must be prepared (started or resumed). A training that has ended stays in the stack and takes no step.

    train: the training bags of each training
    """

    def __init__(self, trainers: Sequence[Trainer], train: Sequence[LabeledBags]) -> None:
        self.trainers, self.train = trainers, train
        self.device = trainers[0].device
        self.bags = CommonBags(train, self.device)
        self._keys = [keys_of(part.bags) for part in train]
        self._steps = [trainer.progress.step for trainer in trainers]
        self._predicted: dict[Hashable, Tensor] = {}
        firsts = [
            keys[trainer.epoch_order(part)[0]] for trainer, part, keys in zip(trainers, train, self._keys, strict=True)
        ]
        self.rehearsal = rehearse(
            trainers,
            [self._features(number, key) for number, key in enumerate(firsts)],
            [self.bags.targets[key] for key in firsts],
        )
        self.form = self.rehearsal.form
        self.after_step = AfterStep(self.form.model)
        self.draws = StackedDraws([trainer.generator for trainer in trainers])
        self.draws.install(self.form)
        self._numbers = torch.arange(len(trainers), device=self.device)
        self.stack = Stack(trainers, self.rehearsal)
        self._check(firsts)
        self.stack.bind(self.form)

    def run_epoch(self, due: Sequence[Trainer]) -> None:
        """The steps of one epoch of some of the trainings."""
        started = time.monotonic()
        orders = [
            trainer.epoch_order(part) if trainer in due else []
            for trainer, part in zip(self.trainers, self.train, strict=True)
        ]
        per_epoch = [len(order) for order in orders]
        steps: list[list[int]] = [[] for _ in orders]
        losses: list[Tensor] = []
        self._predicted.clear()
        self.form.train()
        with plain_forms():
            for key, active in common_steps(
                [[keys[i] for i in order] for keys, order in zip(self._keys, orders, strict=True)]
            ):
                for number in active:
                    steps[number].append(len(losses))
                losses.append(self._step(key, active, per_epoch))
        values = torch.stack(losses).double()
        for number, trainer in enumerate(self.trainers):
            if trainer not in due:
                continue
            if trainer.folder is not None:
                self.stack.share_moments(number)
            trainer.progress.part_names = self.form.part_names
            set_lr(trainer.optimizer, trainer.lr_factor(self._steps[number] - 1, per_epoch[number]))
            own = values[steps[number], number]
            trainer.note_epoch(own, orders[number], self.train[number], time.monotonic() - started)

    def _step(self, key: Hashable, active: list[int], per_epoch: Sequence[int]) -> Tensor:
        """Train the active trainings on one bag; return the parts of the losses of all, R x P."""
        mask = torch.zeros(len(self.trainers), dtype=torch.bool)
        mask[active] = True
        mask = mask.to(self.device)
        losses, values, output = self._losses(key, active)
        gradients = torch.autograd.grad(losses.sum(), self.stack.rows)
        if self.rehearsal.started and min(self._steps) == 0:
            first = torch.tensor([step == 0 for step in self._steps], device=self.device) & mask
            self.stack.set_buffers(self.rehearsal.started, first)
        factors = {number: self.trainers[number].lr_factor(self._steps[number], per_epoch[number]) for number in active}
        self.stack.optimizer.step(gradients, factors, self.trainers[0].settings.clip_norm)
        self.stack.move_copies(mask)
        if self.form.has_after_step:
            self._after_step(key, output, mask)
        for number in active:
            self._steps[number] += 1
        return values

    def _losses(self, key: Hashable, active: Sequence[int]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The losses of all trainings (R) for a bag, their parts (R x P), and other outputs (R x ... each)."""
        self.draws.active = active
        target = self.bags.targets[key]

        def loss(features: Tensor, number: Tensor, tensors: dict[str, Tensor]) -> Any:
            self.draws.number = number
            return functional_call(self.form, tensors, (features, target))

        losses: tuple[Tensor, Tensor, dict[str, Any]] = self._in_all(
            loss, self.bags.features[key], self._numbers, self.stack.tensors()
        )
        return losses

    def _in_all(self, function: Callable[..., Any], features: Tensor, *stacked: Any) -> Any:
        """The results of a function in all trainings, R x ...

        features: as stored; the function gets them as its training sees them
        stacked: R x ...; the function gets those of its training
        """
        if self.bags.scaling is None:
            in_dims = (None, *(0 for _ in stacked))
            return torch.vmap(function, in_dims=in_dims, randomness="same")(features, *stacked)

        def standardizing(center: Tensor, scale: Tensor, *own: Any) -> Any:
            return function(standardized(features, center, scale), *own)

        return torch.vmap(standardizing, randomness="same")(*self.bags.scaling, *stacked)

    def _features(self, number: int, key: Hashable) -> Tensor:
        """The features of a bag as one training sees them."""
        features, scaling = self.bags.features[key], self.bags.scaling
        return features if scaling is None else standardized(features, scaling[0][number], scaling[1][number])

    def _after_step(self, key: Hashable, output: dict[str, Any], mask: Tensor) -> None:
        target = self.bags.targets[key]
        tensors = {name: value for name, value in self.stack.tensors().items() if name.startswith("model.")}
        changed = {name: self.stack.fixed[name].clone() for name in self.stack.buffers if name in tensors}

        def after_step(features: Tensor, tensors: dict[str, Tensor], output: dict[str, Any]) -> Tensor:
            functional_call(self.after_step, tensors, (features, output, target))
            return features

        self._in_all(after_step, self.bags.features[key], tensors | changed, output)
        self.stack.set_buffers(changed, mask)

    @torch.no_grad()
    def logits(self, source: BagSource) -> Tensor:
        """R x n x C: the logits of every training for the bags of a source."""
        keys = keys_of(source)
        if any(key not in self._predicted for key in keys):
            self.bags.add(source)
            self._predict([key for key in keys if key not in self._predicted])
        return torch.stack([self._predicted[key] for key in keys], dim=1).cpu()

    def _predict(self, keys: Sequence[Hashable]) -> None:
        """Compute the logits of every training for some bags."""
        start = "model."
        tensors = {
            name.removeprefix(start): value for name, value in self.stack.tensors().items() if name.startswith(start)
        }

        def of_one(features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self.form.model, tensors, (plain_bag(features),)).logits
            return logits

        def of_several(features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
            return torch.vmap(partial(of_one, tensors=tensors))(features)

        self.form.eval()
        with plain_forms():
            for group in self._equally_long(keys):
                features = torch.stack([self.bags.features[key] for key in group])
                logits = self._in_all(of_several, features, tensors)
                self._predicted |= zip(group, logits.unbind(dim=1), strict=True)

    def _equally_long(self, keys: Sequence[Hashable]) -> list[list[Hashable]]:
        """The bags in lists of equal length, small enough to be predicted together."""
        by_length: dict[int, list[Hashable]] = {}
        for key in keys:
            by_length.setdefault(len(self.bags.features[key]), []).append(key)
        lists = []
        for group in by_length.values():
            size = max(1, VALUES_AT_ONCE // (self.bags.features[group[0]].numel() * len(self.trainers)))
            lists += [group[first : first + size] for first in range(0, len(group), size)]
        return lists

    def _check(self, firsts: Sequence[Hashable]) -> None:
        """Raise unless all trainings at once reproduce the losses that each had for its first bag alone."""
        rewind = self.draws.rewound()
        try:
            for key in dict.fromkeys(firsts):
                own = [number for number, first in enumerate(firsts) if first == key]
                with plain_forms():
                    losses = self._losses(key, own)[0].detach()[own]
                rewind()
                if not torch.allclose(losses, self.rehearsal.losses[own], rtol=1e-3, atol=1e-4, equal_nan=True):
                    raise NotSideBySide("all trainings at once gave different losses than each training alone")
            self.logits(self.train[0].bags)
        except RuntimeError as error:
            raise NotSideBySide(f"torch cannot batch it: {error}") from error
        finally:
            rewind()
            self._predicted.clear()


class StackedDraws:
    """Replaces the random modules of a model under `torch.vmap`, so that every training draws from its own generator.

    A training that does not take part in a step draws nothing, so its generator does not advance.

    active: which trainings take part in the step
    number: the number of the training, within the vmapped function
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = generators
        self._sources = [RandomModule() for _ in generators]
        for source, generator in zip(self._sources, generators, strict=True):
            source.generator = generator
        self.active: Sequence[int] = range(len(generators))
        self.number = torch.tensor(0)

    def install(self, model: nn.Module) -> None:
        """Make every random module of the model draw from here."""
        for part in model.modules():
            if isinstance(part, RandomModule):
                object.__setattr__(part, "uniform", self._uniform)
                object.__setattr__(part, "drop", partial(self._drop, part))

    def rewound(self) -> Callable[[], None]:
        """A function that restores the current state of all generators."""
        states = [generator.get_state() for generator in self._generators]

        def rewind() -> None:
            for generator, state in zip(self._generators, states, strict=True):
                generator.set_state(state)

        return rewind

    def _uniform(self, shape: tuple[int, ...] | torch.Size, like: Tensor) -> Tensor:
        return self._stacked(lambda source: source.uniform(shape, like))

    def _drop(self, part: RandomModule, x: Tensor, p: float) -> Tensor:
        if x.device.type != "cpu" or x.numel() < FEW:
            with batched_draws():
                return RandomModule.drop(part, x, p)  # by `_uniform`
        ones = torch.ones(x.shape, dtype=x.dtype)
        return x * self._stacked(lambda source: source.drop(ones, p))

    def _stacked(self, draw: Callable[[RandomModule], Tensor]) -> Tensor:
        """The result of `draw` for the current training."""
        drawn = {number: draw(self._sources[number]) for number in self.active}
        unused = torch.zeros_like(drawn[self.active[0]])
        return torch.stack([drawn.get(number, unused) for number in range(len(self._sources))])[self.number]
