"""WiKG as the official code runs it: all N x N products, and N x k x d tensors of neighbors, relations and gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.wikg import WiKG


class PlainWiKG(nn.Module):
    """Shares the weights of our model with default settings."""

    def __init__(self, model: WiKG) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor) -> Tensor:
        model = self.model
        assert model.attention is not None
        assert model.join_product is not None
        embedded = functional.leaky_relu(model.embedding.layers[0](features))
        embedded = (embedded + embedded.mean(dim=0, keepdim=True)) * 0.5
        heads, tails = model.choosing(embedded), model.chosen(embedded)
        values, neighbors = (heads * heads.shape[1] ** -0.5 @ tails.t()).topk(model.config.neighbors, dim=1)
        weights = torch.softmax(values, dim=1).unsqueeze(2)
        near, own = tails[neighbors], heads.unsqueeze(1).expand(-1, model.config.neighbors, -1)
        relation = weights * near + (1 - weights) * own
        gate = torch.tanh(own + relation)
        attention = torch.softmax(torch.einsum("nkc,nkd->nk", near, gate), dim=1)
        mixed = (attention.unsqueeze(1) @ near).squeeze(1)
        joined = functional.leaky_relu(model.join(heads + mixed))
        nodes = model.dropout(joined + functional.leaky_relu(model.join_product(heads * mixed)))
        pooled = torch.softmax(model.attention(nodes), dim=1) @ nodes
        logits: Tensor = model.head(model.norm(pooled[0]))
        return logits


def plain_form(model: MILModel) -> PlainWiKG:
    """The plain form of a WiKG with default settings."""
    assert isinstance(model, WiKG)
    return PlainWiKG(model)
