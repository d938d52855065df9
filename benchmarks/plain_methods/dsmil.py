"""DSMIL as its official code has it: a query for every tile, all tiles sorted by class, the head as a convolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from asmil import MILModel
from asmil.models.dsmil import DSMIL


class PlainDSMIL(nn.Module):
    """Built from the weights of our model, so that both can be compared number for number."""

    def __init__(self, model: DSMIL) -> None:
        super().__init__()
        streams, width, classes = model.streams, model.in_features, model.n_outputs
        self.instance = _copy(streams.instance)
        queries = [_copy(layer) for layer in streams.query]
        linear = len(queries) == 1
        self.query: nn.Module = queries[0] if linear else nn.Sequential(queries[0], nn.ReLU(), queries[1], nn.Tanh())
        self.value: nn.Module = nn.Identity()
        if streams.value is not None:
            self.value = nn.Sequential(nn.Dropout(streams.dropout.p), _copy(streams.value), nn.ReLU())
        self.head = nn.Conv1d(classes, classes, kernel_size=width)
        with torch.no_grad():
            self.head.weight.copy_(model.head.weight.view(classes, classes, width))
            self.head.bias.copy_(model.head.bias)  # type: ignore[union-attr]

    def forward(self, features: Tensor) -> Tensor:
        return self.read(features)[0]

    def read(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bag logits (C), instance logits (N x C) and scores (N x C)."""
        instance_logits = self.instance(features)
        values, queries = self.value(features), self.query(features)
        order = torch.sort(instance_logits, 0, descending=True).indices
        critical = self.query(torch.index_select(features, 0, order[0]))
        scores = queries @ critical.t() / math.sqrt(queries.shape[1])
        pooled = torch.softmax(scores, 0).t() @ values
        logits: Tensor = self.head(pooled.unsqueeze(0)).view(-1)
        return logits, instance_logits, scores


def plain_form(model: MILModel) -> PlainDSMIL:
    """The plain form of a DSMIL."""
    assert isinstance(model, DSMIL)
    return PlainDSMIL(model)


def _copy(layer: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    copy = nn.Linear(layer.in_features, layer.out_features)
    copy.load_state_dict(layer.state_dict())
    return copy
