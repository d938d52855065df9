"""Additive MIL as its source has it: every tile is multiplied by its attention, then classified."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from asmil import MILModel
from asmil.models.additive_mil import AdditiveMIL


class PlainAdditiveMIL(nn.Module):
    """Built from the weights of our model, so that both can be compared number for number."""

    def __init__(self, model: AdditiveMIL) -> None:
        super().__init__()
        self.scorer, self.classifier = copy.deepcopy(model.scorer), copy.deepcopy(model.classifier)

    def forward(self, features: Tensor) -> Tensor:
        attention = torch.exp(torch.log_softmax(self.scorer(features), dim=0))
        contributions: Tensor = self.classifier(attention * features)
        return contributions.sum(dim=0)


def plain_form(model: MILModel) -> PlainAdditiveMIL:
    """The plain form of an Additive MIL."""
    assert isinstance(model, AdditiveMIL)
    return PlainAdditiveMIL(model)
