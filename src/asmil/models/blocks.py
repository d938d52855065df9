"""Blocks that several methods share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TanhAttention(nn.Module):
    """Scores of tiles by a small network, for K branches: N x I -> K x N.

    plain:  z_i = w . tanh(V h_i + b_V) + b_w
    gated:  z_i = w . (tanh(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_w
    """

    def __init__(self, width: int, hidden: int, branches: int = 1, gated: bool = True) -> None:
        super().__init__()
        self.value = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden) if gated else None
        self.weight = nn.Linear(hidden, branches)

    def forward(self, embedded: Tensor) -> Tensor:
        hidden = torch.tanh(self.value(embedded))
        if self.gate is not None:
            hidden = hidden * torch.sigmoid(self.gate(embedded))
        scores: Tensor = self.weight(hidden)
        return scores.t()
