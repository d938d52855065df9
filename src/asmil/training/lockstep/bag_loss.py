"""The loss of one bag in a training step, as a module whose tensors can be replaced by those of any replica."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from asmil.attention.stabilizer import AttentionStep, Stabilizer
from asmil.cohort.bag import Bag
from asmil.models.base import MILModel, Output
from asmil.tasks.base import Task
from asmil.training.loop import Trainer


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
