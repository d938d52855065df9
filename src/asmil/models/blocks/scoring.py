"""The small network that scores tiles, shared by most attention methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asmil.models.blocks.layers import ACTIVATIONS, Activation, TileLinear, linear_over_tiles
from asmil.models.blocks.randomness import Dropout
from asmil.models.blocks.tile_passes import gate, one_pass

GATED_ATTENTION = {
    "attention.value": "attention.attention_V.0",
    "attention.gate": "attention.attention_U.0",
    "attention.weight": "attention.attention_weights",
}
"""The gated network in the code that ACMIL, AEM, DTFD and IBMIL share: its layers by our names."""


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
        self.value = TileLinear(width, hidden, bias=bias)
        self.gate = TileLinear(width, hidden, bias=bias) if gated else None
        self.weight = TileLinear(hidden, branches, bias=bias if out_bias is None else out_bias)
        self.activation = ACTIVATIONS[activation]
        self.is_tanh = activation == "tanh"
        self.dropout = Dropout(dropout)

    def forward(self, embedded: Tensor) -> Tensor:
        scores: Tensor = self.weight(self._hidden(embedded))
        return scores.t()

    def _hidden(self, embedded: Tensor) -> Tensor:
        if self.gate is not None and self.is_tanh and one_pass(embedded):
            return self._gated(self.gate, embedded)
        hidden: Tensor = self.dropout(self.activation(self.value(embedded)))
        if self.gate is not None:
            hidden = hidden * self.dropout(torch.sigmoid(self.gate(embedded)))
        return hidden

    def _gated(self, other: nn.Linear, embedded: Tensor) -> Tensor:
        """Both products as one, and everything that follows in one pass."""
        weight = torch.cat([self.value.weight, other.weight])
        bias = None if other.bias is None else torch.cat([self.value.bias, other.bias])
        dropout = self.dropout
        return gate(linear_over_tiles(embedded, weight, bias), dropout.p if dropout.training else 0, dropout.generator)
