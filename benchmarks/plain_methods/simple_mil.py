"""simple_mil as its official code has it: every window gathers its channels and forms its own products."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.simple_mil import SimpleMIL


class PlainSimpleMIL(nn.Module):
    """Built from the weights of our model, so that both can be compared number for number."""

    def __init__(self, model: SimpleMIL) -> None:
        super().__init__()
        self.attention, self.head = copy.deepcopy(model.attention), copy.deepcopy(model.head)
        order, keep = model.channel_order, model.keep
        self.windows = [order[start : start + keep] for start in model.window_starts]

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            chosen = torch.randperm(features.shape[1], device=features.device)[: len(self.windows[0])]
            return self._read(features, chosen)
        return torch.stack([self._read(features, window.to(features.device)) for window in self.windows]).mean(dim=0)

    def _read(self, features: Tensor, channels: Tensor) -> Tensor:
        value, gate, p = self.attention.value, self.attention.gate, self.attention.dropout.p
        assert gate is not None
        chosen = features[:, channels]
        tanh = torch.tanh(functional.linear(chosen, value.weight[:, channels], value.bias))
        sigmoid = torch.sigmoid(functional.linear(chosen, gate.weight[:, channels], gate.bias))
        tanh, sigmoid = (functional.dropout(part, p, self.training) for part in (tanh, sigmoid))
        attention = torch.softmax(self.attention.weight(tanh * sigmoid), dim=0)
        logits: Tensor = self.head((attention * features).sum(dim=0))
        return logits


def plain_form(model: MILModel) -> PlainSimpleMIL:
    """The plain form of a simple_mil."""
    assert isinstance(model, SimpleMIL)
    return PlainSimpleMIL(model)
