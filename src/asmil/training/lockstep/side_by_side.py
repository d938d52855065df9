"""Train all replicas at once: every step uses one bag for all replicas.

All replicas follow the same order of all bags. If the bag of a step is not a training bag of a replica, nothing changes
for this replica: its weights, moments, EMA copies, buffers and generator stay the same. The gradient of the sum of the
replicas' losses contains the gradient of each, since no replica depends on the weights of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from asmil.errors import AsmilError
from asmil.models.blocks.randomness import FEW, RandomModule, batched_draws
from asmil.training.lockstep.plain_forms import plain_forms
from asmil.training.lockstep.rehearsal import AfterStep, NotSideBySide, plain_bag, refuse_settings, rehearse
from asmil.training.lockstep.replicas import Replica, SharedBags, scaled
from asmil.training.lockstep.stack import Stack
from asmil.training.loop import Trainer
from asmil.training.optimization import lr_factor

VALUES_AT_ONCE = 1 << 22
"""Memory for scaled features during prediction; it limits how many bags of one length are predicted together."""


class SideBySide:
    """R trainings in lockstep; raises `NotSideBySide` if this is not possible."""

    def __init__(self, trainers: Sequence[Trainer], bags: SharedBags, replicas: Sequence[Replica]) -> None:
        refuse_settings(trainers[0])
        self.settings = trainers[0].settings
        self.replicas = replicas
        self.device = trainers[0].device
        self.features = [features.to(self.device) for features in bags.features]
        self.targets = torch.as_tensor(bags.targets).to(self.device)
        self.bags = bags
        self.centers, self.scales = (
            torch.stack([torch.as_tensor(values, dtype=torch.float32) for values in column]).to(self.device)
            for column in zip(*((replica.center, replica.scale) for replica in replicas), strict=True)
        )
        members = [set(replica.train.tolist()) for replica in replicas]
        self.active = [[r for r, own in enumerate(members) if bag in own] for bag in range(len(bags))]
        self.steps = [0] * len(replicas)
        order = bags.order(0)
        firsts = [next(bag for bag in order if bag in own) for own in members]
        self.rehearsal = rehearse(
            trainers,
            [scaled(self.features[bag], self.centers[r], self.scales[r]) for r, bag in enumerate(firsts)],
            [self.targets[bag : bag + 1] for bag in firsts],
        )
        self.form = self.rehearsal.form
        self.after_step = AfterStep(self.form.model)
        self.stack = Stack(trainers, self.rehearsal)
        self.draws = StackedDraws([trainer.generator for trainer in trainers])
        self.draws.install(self.form)
        self.places = torch.arange(len(replicas), device=self.device)
        self._check(firsts)

    def train(self, every_epoch: bool) -> npt.NDArray[np.float64]:
        """Probabilities E x R x B x K, as returned by `train_side_by_side`."""
        course = []
        with plain_forms():
            for epoch in range(self.settings.epochs):
                self._train_epoch(epoch)
                if every_epoch or epoch == self.settings.epochs - 1:
                    course.append(self._finite(self._predict(), epoch))
        return np.stack(course)

    def _finite(self, found: npt.NDArray[np.float64], epoch: int) -> npt.NDArray[np.float64]:
        """The probabilities (R x B x K); an undefined one is an error."""
        broken = np.argwhere(~np.isfinite(found))
        if len(broken):
            replica, bag, _ = broken[0]
            raise AsmilError(
                f"bag {bag}: the prediction of replica {replica} is not finite (epoch {epoch + 1}); "
                "lower training.lr or set training.clip_norm=1"
            )
        return found

    def _train_epoch(self, epoch: int) -> None:
        self.form.train()
        diverged = torch.zeros(len(self.replicas), dtype=torch.bool, device=self.device)
        for bag in self.bags.order(epoch):
            if self.active[bag]:
                diverged |= self._step(bag)
        self.stack.move_copies("epoch", torch.ones_like(diverged))
        if bool(diverged.any()):
            raise AsmilError(
                f"the loss of replica {int(diverged.int().argmax())} is no longer finite (epoch {epoch + 1}); "
                "lower training.lr or set training.clip_norm=1"
            )

    def _step(self, bag: int) -> Tensor:
        """Train on one bag; return which replicas have a loss that is not finite."""
        active = self.active[bag]
        mask = torch.zeros(len(self.replicas), dtype=torch.bool)
        mask[active] = True
        mask = mask.to(self.device)
        losses, output = self._losses(bag)
        gradients = torch.autograd.grad(losses.sum(), self.stack.rows)
        self._start(mask)
        self.stack.optimizer.step(gradients, {r: self._lr_factor(r) for r in active}, self.settings.clip_norm)
        self.stack.move_copies("step", mask)
        if self.form.has_after_step:
            self._after_step(bag, output, mask)
        for replica in active:
            self.steps[replica] += 1
        return ~torch.isfinite(losses.detach()) & mask

    def _losses(self, bag: int) -> tuple[Tensor, dict[str, Any]]:
        """The losses of the replicas (R) for a bag, and their other outputs (R x ... each)."""
        self.draws.active = self.active[bag]
        features, target = self.features[bag], self.targets[bag : bag + 1]

        def one(place: Tensor, center: Tensor, scale: Tensor, tensors: dict[str, Tensor]) -> Any:
            self.draws.place = place
            return functional_call(self.form, tensors, (scaled(features, center, scale), target))

        found: tuple[Tensor, dict[str, Any]] = torch.vmap(one, randomness="same")(
            self.places, self.centers, self.scales, self.stack.tensors()
        )
        return found

    def _start(self, mask: Tensor) -> None:
        """Set the initialized buffers of the replicas that take their first step."""
        if self.rehearsal.started and min(self.steps) == 0:
            first = torch.tensor([step == 0 for step in self.steps], device=self.device) & mask
            self.stack.set_buffers(self.rehearsal.started, first)

    def _after_step(self, bag: int, output: dict[str, Any], mask: Tensor) -> None:
        features, target = self.features[bag], self.targets[bag : bag + 1]
        tensors = {name: value for name, value in self.stack.tensors().items() if name.startswith("model.")}
        changed = {name: self.stack.fixed[name].clone() for name in self.stack.buffers if name in tensors}

        def one(center: Tensor, scale: Tensor, tensors: dict[str, Tensor], output: dict[str, Any]) -> Tensor:
            functional_call(self.after_step, tensors, (scaled(features, center, scale), output, target))
            return center

        torch.vmap(one, randomness="same")(self.centers, self.scales, tensors | changed, output)
        self.stack.set_buffers(changed, mask)

    def _lr_factor(self, replica: int) -> float:
        steps = len(self.replicas[replica].train)
        return lr_factor(self.steps[replica], steps * self.settings.epochs, steps, self.settings)

    @torch.no_grad()
    def _predict(self) -> npt.NDArray[np.float64]:
        """R x B x K: the probabilities of every replica for every bag."""
        self.form.eval()
        tensors = {
            name.removeprefix("model."): value
            for name, value in self.stack.tensors().items()
            if name.startswith("model.")
        }

        def one(center: Tensor, scale: Tensor, tensors: dict[str, Tensor], together: Tensor) -> Tensor:
            def logits(features: Tensor) -> Tensor:
                output = functional_call(self.form.model, tensors, (plain_bag(scaled(features, center, scale)),))
                found: Tensor = output.logits
                return found

            return torch.vmap(logits)(together)

        found = np.empty((len(self.replicas), len(self.bags), self.bags.n_classes))
        for numbers in self._equally_long():
            together = torch.stack([self.features[number] for number in numbers])
            every = torch.vmap(one, in_dims=(0, 0, 0, None))(self.centers, self.scales, tensors, together)
            found[:, numbers] = torch.softmax(every.double(), dim=-1).cpu().numpy()
        return found

    def _equally_long(self) -> list[list[int]]:
        """The bags in lists of equal length, small enough to be predicted together."""
        by_length: dict[int, list[int]] = {}
        for number, features in enumerate(self.features):
            by_length.setdefault(len(features), []).append(number)
        lists = []
        for length, numbers in by_length.items():
            size = max(1, VALUES_AT_ONCE // (length * self.bags.width * len(self.replicas)))
            lists += [numbers[first : first + size] for first in range(0, len(numbers), size)]
        return lists

    def _check(self, firsts: Sequence[int]) -> None:
        """Raise unless all replicas at once reproduce the losses that each had for its first bag alone."""
        rewind = self.draws.rewound()
        try:
            with plain_forms():
                for bag in sorted(set(firsts)):
                    own = [r for r, first in enumerate(firsts) if first == bag]
                    found = self._losses(bag)[0].detach()[own]
                    rewind()
                    if not torch.allclose(found, self.rehearsal.losses[own], rtol=1e-3, atol=1e-4, equal_nan=True):
                        raise NotSideBySide("all replicas at once gave different losses than each replica alone")
                self._predict()
        except RuntimeError as error:
            raise NotSideBySide(f"torch cannot batch it: {error}") from error
        finally:
            rewind()


class StackedDraws:
    """Replaces the random modules of a model under `torch.vmap`, so that every replica draws from its own generator.

    A replica that does not take part in a step draws nothing, so its generator does not advance.

    active: which replicas take part in the step
    place: the number of the replica, within the vmapped function
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._sources = [_source(generator) for generator in generators]
        self.active: Sequence[int] = range(len(generators))
        self.place = torch.tensor(0)

    def install(self, model: nn.Module) -> None:
        """Make every random module of the model draw from here."""
        for part in model.modules():
            if isinstance(part, RandomModule):
                object.__setattr__(part, "uniform", self._uniform)
                object.__setattr__(part, "drop", partial(self._drop, part))

    def rewound(self) -> Callable[[], None]:
        """A function that restores the current state of all generators."""
        states = [_generator(source).get_state() for source in self._sources]

        def rewind() -> None:
            for source, state in zip(self._sources, states, strict=True):
                _generator(source).set_state(state)

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
        """The result of `draw` for the current replica."""
        drawn = {replica: draw(self._sources[replica]) for replica in self.active}
        unused = torch.zeros_like(drawn[self.active[0]])
        return torch.stack([drawn.get(replica, unused) for replica in range(len(self._sources))])[self.place]


def _source(generator: torch.Generator) -> RandomModule:
    source = RandomModule()
    source.generator = generator
    return source


def _generator(source: RandomModule) -> torch.Generator:
    assert source.generator is not None
    return source.generator
