"""SiMLP as its source has it: the mean of the tiles, then two layers; no map."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.simlp import SiMLP


class PlainSiMLP(nn.Module):
    """Built from the weights of our model, so that both can be compared number for number."""

    def __init__(self, model: SiMLP) -> None:
        super().__init__()
        self.hidden, self.head, self.dropout = (
            copy.deepcopy(part) for part in (model.hidden, model.head, model.dropout)
        )

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(functional.relu(self.hidden(features.mean(dim=0)))))
        return logits


def plain_form(model: MILModel) -> PlainSiMLP:
    """The plain form of a SiMLP."""
    assert isinstance(model, SiMLP)
    return PlainSiMLP(model)
