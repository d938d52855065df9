"""The small network that scores tiles, shared by most attention methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asmil.models.blocks.activations import ACTIVATIONS, Activation
from asmil.models.blocks.randomness import Dropout


class ScoreNetwork(nn.Module):
    """Scores of tiles, for K branches: N x I -> K x N.

    plain:  z_i = w . act(V h_i + b_V) + b_w
    gated:  z_i = w . (act(V h_i + b_V) * sigmoid(U h_i + b_U)) + b_w

    act is tanh by default; dropout, if any, follows act and the sigmoid.
    bias: of V and U; out_bias: of w (by default as `bias`)
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        branches: int = 1,
        gated: bool = True,
        *,
        bias: bool = True,
        out_bias: bool | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.value = nn.Linear(width, hidden, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.weight = nn.Linear(hidden, branches, bias=bias if out_bias is None else out_bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, embedded: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.value(embedded)))
        if self.gate is not None:
            hidden = hidden * self.dropout(torch.sigmoid(self.gate(embedded)))
        scores: Tensor = self.weight(hidden)
        return scores.t()
