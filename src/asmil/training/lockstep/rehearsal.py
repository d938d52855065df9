"""Run the first step of every replica alone, on copies, to find out how the model behaves.

This shows which parameters the loss reaches, whether the first bag initializes the model (PSMIL's prototypes), and the
loss of that bag, which all replicas at once must reproduce.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from asmil.attention.stabilizer import AttentionStep, Stabilizer
from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output
from asmil.tasks.base import Task
from asmil.training.honored_settings import LOCKSTEP, undeclared
from asmil.training.loop import Trainer


class NotSideBySide(Exception):
    """These trainings cannot run side by side; the message explains why."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of the first steps.

    form: a module like that of every replica, after its first bag
    reached: names of the parameters that the loss reaches
    started: name -> R x ..., buffers after the first bag of each replica; empty if the bag does not change them
    losses: R, the loss of the first bag of each replica
    """

    form: BagLoss
    reached: frozenset[str]
    started: dict[str, Tensor]
    losses: Tensor


def refuse_settings(trainer: Trainer) -> None:
    """Raise if the settings or the method need more than plain optimizer steps."""
    model = trainer.model
    obstacles = {
        "the method has several stages": len(trainer.stages) > 1,
        "the method prepares its bags": type(model).prepare is not MILModel.prepare,
        "the method changes from step to step": type(model).before_step is not MILModel.before_step,
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            raise NotSideBySide(obstacle)
    name = undeclared(trainer.config, LOCKSTEP)
    if name is not None:
        raise NotSideBySide(f"{name} is computed only for one training at a time")


def rehearse(trainers: Sequence[Trainer], first_bags: Sequence[Tensor], first_targets: Sequence[Tensor]) -> Rehearsal:
    """The first step of every replica on a copy of its model; the generators are restored afterwards."""
    forms: list[BagLoss] = []
    losses = []
    for trainer, features, target in zip(trainers, first_bags, first_targets, strict=True):
        form = copy.deepcopy(BagLoss(trainer)).train()
        form.model.use_generator(trainer.generator)
        state = trainer.generator.get_state()
        losses.append(form(features, target)[0].detach())
        _refuse_unsteady_buffers(form, features, target)
        if not forms:
            reached = _reached(form, features, trainer.task.n_outputs)
        trainer.generator.set_state(state)
        forms.append(form)
    started = _stacked_buffers(forms)
    before = _stacked_buffers([BagLoss(trainer) for trainer in trainers])
    changed = any(not torch.equal(value, before[name]) for name, value in started.items())
    return Rehearsal(forms[0], reached, started if changed else {}, torch.stack(losses))


def _reached(form: BagLoss, features: Tensor, n_classes: int) -> frozenset[str]:
    """The parameters that get a gradient; an optimizer skips the others, including their decay."""
    reached = []
    for number in range(n_classes):
        form.zero_grad(set_to_none=True)
        form(features, torch.tensor([number], device=features.device))[0].backward()
        reached.append(frozenset(name for name, parameter in form.named_parameters() if parameter.grad is not None))
    form.zero_grad(set_to_none=True)
    if len(set(reached)) > 1:
        raise NotSideBySide("the method trains different parameters for bags of different classes")
    return reached[0]


def _stacked_buffers(forms: Sequence[BagLoss]) -> dict[str, Tensor]:
    """The models' own buffers, R x ... each."""
    owned = [dict(form.model.named_buffers()) for form in forms]
    return {f"model.{name}": torch.stack([buffers[name] for buffers in owned]) for name in owned[0]}


@torch.no_grad()
def _refuse_unsteady_buffers(form: BagLoss, features: Tensor, target: Tensor) -> None:
    before = {name: buffer.clone() for name, buffer in form.named_buffers()}
    form(features, target)
    if any(not torch.equal(buffer, before[name]) for name, buffer in form.named_buffers()):
        raise NotSideBySide("the method changes its state with every bag it reads")


class BagLoss(nn.Module):
    """A model in training, its stabilizers and its task: features (N x D) and a target (1) -> loss and output."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.model: MILModel = trainer.model
        self.stabilizers = nn.ModuleDict(trainer.stabilizers)
        self.task: Task = trainer.task
        self.kept_rows = trainer.config.anchor.rows == "kept"
        self.has_after_step = type(self.model).after_step is not MILModel.after_step

    def forward(self, features: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The loss, and the outputs that `after_step` needs (empty if the model has no `after_step`)."""
        bag = plain_bag(features)
        output: Output = self.model(bag)
        total = self.model.loss([output], target, self.task).total
        if self.stabilizers:
            scores = self.model.attend(bag) if output.scores is None else output.scores
            rows = output.extras.get("kept_rows") if self.kept_rows else None
            step = AttentionStep(bag, scores, output.embedding, self.model.normalizer, rows)
            for stabilizer in self.stabilizers.values():
                assert isinstance(stabilizer, Stabilizer)
                total = total + stabilizer.penalty(step)
        return total, _tensors(output) if self.has_after_step else {}


class AfterStep(nn.Module):
    """A model's `after_step`, which changes buffers in place."""

    def __init__(self, model: MILModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, output: dict[str, Any], target: Tensor) -> None:
        known = {field.name: None for field in fields(Output)} | output
        self.model.after_step(plain_bag(features), Output(**known), target)


def plain_bag(features: Tensor) -> Bag:
    """A bag whose values are not checked, since a check would read them."""
    return Bag(features, validated=True)


def _tensors(output: Output) -> dict[str, Any]:
    """The tensors of an output, without None and without gradients."""
    held = {field.name: getattr(output, field.name) for field in fields(Output) if field.name != "extras"}
    found: dict[str, Any] = {name: value.detach() for name, value in held.items() if isinstance(value, torch.Tensor)}
    return found | {"extras": {name: value.detach() for name, value in output.extras.items()}}
