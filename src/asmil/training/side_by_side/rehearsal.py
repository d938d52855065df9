"""Take the first step of every training alone, on copies, to find out how the model behaves.

This shows which parameters the loss reaches, whether the first bag initializes the model (PSMIL's prototypes), which
buffers every bag changes (running statistics), and the loss of that bag, which all trainings at once must reproduce.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output
from asmil.models.batch import keeps_statistics
from asmil.tasks.classification import Classification
from asmil.training.loop import Trainer
from asmil.training.side_by_side.bags import NotSideBySide

Moment = tuple[Any, Any]
"""The step of a training (0-based), and how many it has in all: numbers, or tensors of n trainings."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of the first steps.

    form: a module like that of every training, after its first bag
    reached: the parameters that the loss reaches, each with the classes of the bags that reach it
    moving: the buffers that every bag changes
    started: name -> R x ..., other buffers after the first bag of each training; empty if the bag does not change them
    losses: R, the loss of the first bag of each training
    """

    form: BagLoss
    reached: dict[str, frozenset[int]]
    moving: frozenset[str]
    started: dict[str, Tensor]
    losses: Tensor


def rehearse(
    trainers: Sequence[Trainer],
    first_bags: Sequence[Tensor],
    first_targets: Sequence[Tensor],
    moments: Sequence[Moment],
    classes: Sequence[Tensor],
    other_bags: Sequence[Tensor],
) -> Rehearsal:
    """The first step of every training on a copy of its model; the generators are restored afterwards.

    moments: of the first step of each training
    classes: one target of every class; if the task has no classes, any target
    other_bags: features of other lengths, which must train the same weights; if not, `NotSideBySide` is raised
    """
    forms: list[BagLoss] = []
    losses = []
    moving: frozenset[str] = frozenset()
    for trainer, features, target, moment in zip(trainers, first_bags, first_targets, moments, strict=True):
        form = copy.deepcopy(BagLoss(trainer), {id(trainer.generator): trainer.generator}).train()
        form.model.use_generator(trainer.generator)
        state = trainer.generator.get_state()
        losses.append(form(features, None, target, moment).loss.detach())
        moving |= _moving_buffers(form, features, target)
        if not forms:
            reached = _reached(form, features, classes)
            other = copy.deepcopy(form, {id(trainer.generator): trainer.generator})
            if any(_reached(other, bag, classes) != reached for bag in other_bags):
                raise NotSideBySide("the number of tiles of a bag decides which weights it trains")
        trainer.generator.set_state(state)
        forms.append(form)
    forms[0].moving = moving
    started = {name: value for name, value in _stacked_buffers(forms).items() if name not in moving}
    before = _stacked_buffers([BagLoss(trainer) for trainer in trainers])
    changed = any(not torch.equal(value, before[name]) for name, value in started.items())
    return Rehearsal(forms[0], reached, moving, started if changed else {}, torch.stack(losses))


def _reached(form: BagLoss, features: Tensor, classes: Sequence[Tensor]) -> dict[str, frozenset[int]]:
    """The parameters that get a gradient, by class; an optimizer skips the others, including their decay."""
    reached: dict[str, frozenset[int]] = {}
    for label, target in enumerate(classes):
        form.zero_grad(set_to_none=True)
        form(features, None, target).loss.backward()
        for name, parameter in form.named_parameters():
            if parameter.grad is not None:
                reached[name] = reached.get(name, frozenset()) | {label}
    form.zero_grad(set_to_none=True)
    return reached


def _stacked_buffers(forms: Sequence[BagLoss]) -> dict[str, Tensor]:
    """The models' own buffers, R x ... each."""
    owned = [dict(form.model.named_buffers()) for form in forms]
    return {f"model.{name}": torch.stack([buffers[name] for buffers in owned]) for name in owned[0]}


@torch.no_grad()
def _moving_buffers(form: BagLoss, features: Tensor, target: Tensor) -> frozenset[str]:
    """The buffers that a bag changes, also after the first; running statistics, even if this bag has none."""
    before = {name: buffer.clone() for name, buffer in form.named_buffers()}
    form(features, None, target)
    statistics = {id(buffer) for part in form.modules() if keeps_statistics(part) for buffer in part.buffers()}
    return frozenset(
        name
        for name, buffer in form.named_buffers()
        if id(buffer) in statistics or not torch.equal(buffer, before[name])
    )


class BagResult(NamedTuple):
    """The result of a training pass over one bag; of n trainings at once, all tensors have a first axis of n.

    parts: P, the parts of the loss, without gradients
    output: what `after_step` needs, if the model has one
    moved: the changed buffers, by name
    """

    loss: Tensor
    parts: Tensor
    output: dict[str, Any]
    moved: dict[str, Tensor]


class BagLoss(nn.Module):
    """A model in training with its stabilizers: from features (N x D), their mask and a target (1 x ...) to the loss.

    Trainings differ in what their task fitted on their training bags, so targets are those of the unfitted task.

    part_names: the parts of the loss, known after the first bag
    moving: the buffers that every bag changes
    """

    class_weights: Tensor

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.model: MILModel = trainer.model
        self.stabilizers = nn.ModuleDict(trainer.stabilizers)
        self.gradients = replace(trainer.gradients, task=trainer.task.unfitted())
        weights = trainer.task.class_weights if isinstance(trainer.task, Classification) else ()
        # a buffer, so that it is stacked: trainings with different training bags have different weights
        self.register_buffer("class_weights", torch.tensor(weights, device=trainer.device))
        self.has_weights = any(weight != 1.0 for weight in weights)
        self.has_before_step = type(self.model).before_step is not MILModel.before_step
        self.has_after_step = type(self.model).after_step is not MILModel.after_step
        self.part_names: list[str] = []
        self.moving: frozenset[str] = frozenset()

    def forward(self, features: Tensor, mask: Tensor | None, target: Tensor, moment: Moment | None = None) -> BagResult:
        """moment: None: the first step, of one."""
        if self.has_before_step:
            self.model.before_step(*(moment or (0, 1)))
        if self.has_weights:
            assert isinstance(self.gradients.task, Classification)
            self.gradients.task.weigh(self.class_weights)
        output, parts = self.gradients.loss_of(plain_bag(self.model, features, mask), target)
        self.part_names = list(parts)
        values = torch.stack([value.detach() for value in parts.values()])
        moved = {name: buffer for name, buffer in self.named_buffers() if name in self.moving}
        return BagResult(parts["loss"], values, tensors_of(output) if self.has_after_step else {}, moved)


class AfterStep(nn.Module):
    """A model's `after_step`, which changes tensors in place."""

    def __init__(self, model: MILModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, features: Tensor, mask: Tensor | None, output: dict[str, Any], target: Tensor, moment: Moment | None
    ) -> None:
        if moment is not None:  # what it set for the loss was for another call of `torch.vmap`
            self.model.before_step(*moment)
        self.model.after_step(plain_bag(self.model, features, mask), output_of(output), target)


def plain_bag(model: MILModel, features: Tensor, mask: Tensor | None) -> Bag:
    """A bag of features and `tile_tables`, N x (D + T), whose values are not checked, since a check would read them."""
    width = model.in_features
    extras = {name: features[:, width + i].long() for i, name in enumerate(model.tile_tables or ())}
    return Bag(features[:, :width], extras=extras, mask=mask, validated=True)


def tensors_of(output: Output) -> dict[str, Any]:
    """The tensors of an output, without None and without gradients."""
    values = {field.name: getattr(output, field.name) for field in fields(Output) if field.name != "extras"}
    tensors: dict[str, Any] = {name: value.detach() for name, value in values.items() if value is not None}
    return tensors | {"extras": {name: value.detach() for name, value in output.extras.items()}}


def output_of(tensors: Mapping[str, Any]) -> Output:
    """The inverse of `tensors_of`."""
    return Output(**{field.name: None for field in fields(Output)} | dict(tensors))
