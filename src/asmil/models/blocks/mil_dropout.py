"""MIL-Dropout (Zhu et al., How Effective Can Dropout Be in Multiple Instance Learning?, 2025).

A layer without parameters and without randomness, for embedded tiles of one bag. In training it zeroes the k tiles
with the largest channel mean and, for each of them, the g tiles most similar to it (cosine) among the others, and
scales what is left by n / kept. In inference it is the identity.

The official code answers NaN when every tile falls; here, if nothing would be left, only the k tiles are dropped, and
a bag of at most k tiles is returned as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class TileDrop:
    """What the layer decides for one bag.

    importance: N, the sigmoid of the channel means
    top: the k most important tiles, the most important first
    mask: N, 1 for kept tiles and 0 for dropped ones
    scale: n / number kept
    """

    importance: Tensor
    top: Tensor
    mask: Tensor
    scale: float


def choose_dropped(embedded: Tensor, top: int, neighbors: int) -> TileDrop:
    """Which tiles of a bag (N x I) fall."""
    n_tiles = len(embedded)
    importance = torch.sigmoid(embedded.mean(dim=1))
    # By the mean itself: sigmoid keeps the order, and may round two means to one value.
    order = torch.sort(embedded.mean(dim=1), descending=True, stable=True).indices
    mask = embedded.new_ones(n_tiles)
    if top == 0 or n_tiles <= top:
        return TileDrop(importance, order[:top], mask, 1.0)
    chosen, others = order[:top], order[top:]
    mask[chosen] = 0
    directions = functional.normalize(embedded, dim=1)
    similarity = directions[chosen] @ directions[others].t()
    similar = torch.sort(similarity, dim=1, descending=True, stable=True).indices[:, :neighbors]
    also = others[similar.unique()]
    if len(also) < len(others):
        mask[also] = 0
    return TileDrop(importance, chosen, mask, n_tiles / float(mask.sum()))


class MILDropout(nn.Module):
    """The layer: N x I -> N x I."""

    def __init__(self, top: int, neighbors: int) -> None:
        super().__init__()
        self.top = top
        self.neighbors = neighbors

    def forward(self, embedded: Tensor) -> Tensor:
        if not self.training or self.top == 0:
            return embedded
        drop = choose_dropped(embedded.detach(), self.top, self.neighbors)
        return embedded * (drop.mask * drop.scale).unsqueeze(1)
