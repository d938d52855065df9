"""MHIM v1 as its official code runs it: the student embeds masked tiles too, and sets tell which tiles are kept.

Built from the weights of our model. A training step is compared without what both forms share: the consistency loss
and the moving average.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from asmil import MILModel
from asmil.models.mhim import MHIM
from asmil.models.mhim_maskable import AttentionEncoder, Network, TransformerEncoder
from plain_methods.transmil import PlainLayer


class PlainAttentionBase(nn.Module):
    """The ABMIL base: N x I -> bag feature and attention (1 x N)."""

    def __init__(self, source: AttentionEncoder) -> None:
        super().__init__()
        self.attention, self.head = source.attention, source.head

    def forward(self, embedded: Tensor, ranks: bool) -> tuple[Tensor, Tensor | None]:
        attention = torch.softmax(self.attention(embedded), dim=-1)
        return (attention @ embedded)[0], attention if ranks else None


class PlainTransformerBase(nn.Module):
    """The TransMIL base: N x I -> bag feature and the class token's row of layer 1 (heads x N)."""

    def __init__(self, source: TransformerEncoder) -> None:
        super().__init__()
        self.class_token, self.norm, self.head = source.class_token, source.norm, source.head
        self.layer1, self.layer2 = PlainLayer(source.layer1), PlainLayer(source.layer2)
        self.convolutions = source.position.convolutions

    def forward(self, embedded: Tensor, ranks: bool) -> tuple[Tensor, Tensor | None]:
        tokens = torch.cat([self.class_token, embedded])
        row = None
        if ranks:
            f1, z, f3, _ = self.layer1.attention.factors(self.layer1.norm(tokens))
            row = ((f1[:, -len(tokens)].unsqueeze(1) @ z) @ f3)[:, 0, -len(embedded) :]
        tokens = self.layer1(tokens)
        tokens = torch.cat([tokens[:1], self._positioned(tokens[1:])])
        return self.norm(self.layer2(tokens))[0], row

    def _positioned(self, tokens: Tensor) -> Tensor:
        side = math.ceil(math.sqrt(len(tokens)))
        laid = torch.cat([tokens, tokens[: side**2 - len(tokens)]])
        side = max(side, 7)
        laid = torch.cat([laid, laid.new_zeros(side**2 - len(laid), laid.shape[1])])
        grid = laid.t().reshape(1, -1, side, side)
        conv7, conv5, conv3 = self.convolutions
        mixed: Tensor = conv7(grid) + grid + conv5(grid) + conv3(grid)
        return mixed.flatten(2).squeeze(0).t()[: len(tokens)]


class PlainNetwork(nn.Module):
    def __init__(self, source: Network, dropout: float) -> None:
        super().__init__()
        source = copy.deepcopy(source)
        (layer,) = source.embedding.layers
        self.embedding = nn.Sequential(layer, nn.ReLU(), nn.Dropout(dropout))
        self.base: PlainAttentionBase | PlainTransformerBase
        if isinstance(source.encoder, AttentionEncoder):
            self.base = PlainAttentionBase(source.encoder)
        else:
            assert isinstance(source.encoder, TransformerEncoder)
            self.base = PlainTransformerBase(source.encoder)


class PlainMHIM(nn.Module):
    def __init__(self, model: MHIM) -> None:
        super().__init__()
        self.recipe = model.recipe
        self.student = PlainNetwork(model.network, model.config.dropout)
        self.teacher = PlainNetwork(model.teacher, model.config.dropout)

    def forward(self, features: Tensor) -> Tensor:
        embedded = self.student.embedding(features)
        if self.training:
            with torch.no_grad():
                _, ranking = self.teacher.base(self.teacher.embedding(features), True)
            embedded = embedded[self._kept(ranking)]
        feature, _ = self.student.base(embedded, False)
        logits: Tensor = self.student.base.head(feature)
        return logits

    def _kept(self, ranking: Tensor) -> Tensor:
        n_tiles, recipe = ranking.shape[1], self.recipe
        masked: set[int] = set()
        if recipe.mask_random > 0:
            masked |= set(torch.randperm(n_tiles)[: math.ceil(n_tiles * recipe.mask_random)].tolist())
        if recipe.mask_low > 0:
            masked |= set(_voted(ranking, math.ceil(n_tiles * recipe.mask_low), False).tolist())
        if recipe.mask_high > 0:
            high = _voted(ranking, math.ceil(n_tiles * recipe.mask_high / recipe.high_share), True)
            masked |= set(high[torch.randperm(len(high))[: math.ceil(len(high) * recipe.high_share)]].tolist())
        return torch.tensor(list(set(range(n_tiles)).difference(masked)), device=ranking.device)


def _voted(ranking: Tensor, count: int, largest: bool) -> Tensor:
    marked = torch.topk(ranking, count, largest=largest).indices
    return torch.topk(torch.zeros_like(ranking).scatter_(1, marked, 1).sum(dim=0), count).indices


def plain_form(model: MILModel) -> PlainMHIM | None:
    """The plain form of v1 with the ABMIL or TransMIL base."""
    assert isinstance(model, MHIM)
    if model.config.version == 2 or model.config.base == "dsmil":
        return None
    return PlainMHIM(model)
