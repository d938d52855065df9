"""Bind trainings to one set of buffers: their models, optimizers and anchors become views of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.attention.anchor import Anchor
from asmil.cohort.bag import Bag
from asmil.models.asmil import ASMIL
from asmil.tasks.classification import Classification
from asmil.training.fused.forward import Dropped, Forward
from asmil.training.fused.layout import Sizes
from asmil.training.fused.step import Step, StepSettings
from asmil.training.fused.weights import Weights
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.optimization import set_lr
from asmil.training.recording import Said
from asmil.training.resident import ResidentBags

TILES_AT_ONCE = 1_000_000
"""Number of tiles that an evaluation embeds at a time."""


class Members:
    """Trainings that take their steps together, each on its own bags, with their weights side by side.

    Every trainer must be prepared (started or resumed), and its bags must be in `bags`.
    """

    def __init__(self, trainers: Sequence[Trainer], bags: ResidentBags, train: LabeledBags, evaluated: Sequence[int]):
        self.trainers = list(trainers)
        self.bags = bags
        self.train = train
        self.numbers = torch.tensor(bags.numbers(train.bags), dtype=torch.int32)
        bags.set_targets(self.numbers.tolist(), train.targets)
        first = self.trainers[0]
        assert isinstance(first.model, ASMIL)
        self.weights = Weights(Sizes.of(first.model), len(trainers), first.device, bags.features.dtype)
        longest = bags.longest(self.numbers.tolist())
        self.step = Step(self.weights, bags, _settings(first), longest, len(self.numbers), self._schedule(first))
        if first.device.type == "cuda":
            self.step.record()
        self._steps: dict[int, Tensor] = {}
        self._orders: list[Tensor] = []
        self._started = time.monotonic()
        for p, trainer in enumerate(self.trainers):
            self._adopt(p, trainer)
        self.weights.refresh()
        longest = bags.longest(evaluated)
        slots = max(1, min(len(evaluated), TILES_AT_ONCE // longest))
        self.forward = Forward(self.weights, bags, slots, longest, anchor=False)

    def _schedule(self, trainer: Trainer) -> Tensor:
        """For `adam_kernel`: the values that depend on the step number."""
        per_epoch = len(self.numbers)
        steps = per_epoch * trainer.epochs
        lr = trainer.settings.lr * np.array([trainer.lr_factor(step, per_epoch) for step in range(steps)])
        beta1, beta2 = trainer.settings.betas
        n = np.arange(1, steps + 1)
        return torch.from_numpy(np.stack([lr / (1 - beta1**n), np.sqrt(1 - beta2**n)], axis=1))

    @torch.no_grad()
    def _adopt(self, p: int, trainer: Trainer) -> None:
        """Move the state of a training into the buffers, and replace it with views of them."""
        weights, layout = self.weights, self.weights.layout
        parameters = dict(trainer.model.named_parameters())
        # one step count per parameter, as in Adam
        self._steps[p] = torch.full((len(parameters),), float(trainer.progress.step), device=trainer.device)
        self.step.step[p] = trainer.progress.step
        self.step.keys[p] = trainer.random_key
        for i, (name, parameter) in enumerate(parameters.items()):
            _become(parameter, layout.view(weights.parameters, name)[p])
            state = trainer.optimizer.state[parameter]
            averages = {"exp_avg": weights.mean, "exp_avg_sq": weights.square}
            for key, buffer in averages.items():
                view = layout.view(buffer, name)[p]
                view.copy_(state[key]) if key in state else view.zero_()
                state[key] = view
            state["step"] = self._steps[p][i]
        anchor = trainer.stabilizers.get("anchor")
        if isinstance(anchor, Anchor):
            # a forward pass of one tile shows which weights it reads; all other copies are dropped
            anchor.read(Bag(torch.zeros(1, trainer.model.in_features, device=trainer.device)))
            for name, parameter in anchor.copy.named_parameters():
                _become(parameter, layout.view(weights.anchors, name)[p])

    def start_epoch(self) -> None:
        """Draw the order of bags of every training."""
        self._started = time.monotonic()
        self._orders = [torch.tensor(trainer.epoch_order(self.train)) for trainer in self.trainers]
        self.step.order.copy_(self.numbers[torch.stack(self._orders)])

    def steps(self) -> Iterator[None]:
        """Start the steps of an epoch, one of every training with each iteration."""
        return self.step.epoch()

    def end_epoch(self) -> None:
        """Read the losses of the epoch and count its steps."""
        self.step.wait()
        losses = self.step.epoch_losses.double().cpu()
        for p, (trainer, order) in enumerate(zip(self.trainers, self._orders, strict=True)):
            self._note_epoch(trainer, losses[p], order.tolist(), time.monotonic() - self._started)
            self._steps[p].fill_(trainer.progress.step)

    def _note_epoch(self, trainer: Trainer, losses: Tensor, order: list[int], seconds: float) -> None:
        """Update the trainer's progress as if it had taken these steps."""
        names = ["loss", trainer.task.loss_name]
        parts = losses[:, :1]
        if "anchor" in trainer.stabilizers:
            parts, names = losses, [*names, "anchor"]
        trainer.progress.part_names = names
        set_lr(trainer.optimizer, trainer.lr_factor(trainer.progress.step + len(order) - 1, len(order)))
        losses = torch.cat([parts.sum(dim=1, keepdim=True), parts], dim=1)
        trainer.note_epoch(losses, order, self.train, seconds)


class MemberEvaluator:
    """Evaluates one member on many bags on the device at once."""

    def __init__(self, members: Members, member: int) -> None:
        self.members = members
        self.member = member

    def logits(self, bags: BagSource) -> Tensor:
        """Logits of all bags of a source, n x C."""
        passes = self._passes(self.members.bags.numbers(bags))
        # every pass writes into the same buffer
        return torch.cat([forward.logits[:n].clone() for n, forward in passes]).cpu()

    def said(self, chosen: Sequence[tuple[BagSource, int]]) -> list[Said]:
        """Attention, logits and embedding of single bags, each given as a source and an index."""
        bags = self.members.bags
        numbers = [bags.numbers(source)[index] for source, index in chosen]
        said: list[Said] = []
        for n, forward in self._passes(numbers):
            arrays = (forward.heatmaps(), forward.logits, forward.embedding)
            heatmaps, logits, embedding = (_numpy(values[:n]) for values in arrays)
            for slot in range(n):
                size = bags.sizes[numbers[len(said)]]
                said.append(Said(heatmaps[slot, :size].copy(), logits[slot], embedding[slot]))
        return said

    def _passes(self, numbers: list[int]) -> Iterator[tuple[int, Forward]]:
        """The forward passes of the bags, a fixed number at a time; unused slots repeat the shortest bag."""
        forward, sizes = self.members.forward, self.members.bags.sizes
        self.members.weights.fold()
        forward.member.fill_(self.member)
        filler = min(numbers, key=lambda number: sizes[number])
        for first in range(0, len(numbers), forward.slots):
            here = numbers[first : first + forward.slots]
            forward.bag.copy_(torch.tensor(here + [filler] * (forward.slots - len(here)), dtype=torch.int32))
            forward.infer()
            yield len(here), forward


def _settings(trainer: Trainer) -> StepSettings:
    config, task = trainer.config, trainer.task
    assert isinstance(trainer.model, ASMIL)
    assert isinstance(task, Classification)
    model, anchor = trainer.model.config, config.anchor
    return StepSettings(
        Dropped(model.dropout, model.drop),
        None if anchor.normalizer == "none" else anchor.weight,
        1.0 if anchor.update == "never" else anchor.momentum,
        config.training.weight_decay,
        config.training.betas,
        task.class_weights,
    )


def _become(parameter: torch.nn.Parameter, view: Tensor) -> None:
    """Make a parameter store its values in the view."""
    view.copy_(parameter)
    parameter.data = view


def _numpy(values: Tensor) -> npt.NDArray[np.float32]:
    return values.float().cpu().numpy()
