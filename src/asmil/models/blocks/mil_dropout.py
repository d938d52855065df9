"""MIL-Dropout (Zhu et al., How Effective Can Dropout Be in Multiple Instance Learning?, 2025).

A layer without parameters and without randomness, for the embedded tiles of one bag. In training it zeroes the k tiles
with the largest channel mean and, for each of them, the g tiles most similar to it (cosine) among the others, and
scales the rest by n / kept. In inference it is the identity.

Ties: of equally important tiles, the earlier one ranks higher; of equally similar tiles, the more important one. If no
tile would be left, only the k tiles are dropped; a bag of at most k tiles is not changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.layers import floating, full_precision


@dataclass(frozen=True)
class TileDrop:
    """What the layer decides for one bag.

    importance: N, the sigmoid of the channel means
    top: the k most important tiles, the most important first
    mask: N, 1 for kept tiles and 0 for dropped ones
    scale: n / number kept, a scalar
    """

    importance: Tensor
    top: Tensor
    mask: Tensor
    scale: Tensor


@torch.no_grad()
def choose_dropped(embedded: Tensor, top: int, neighbors: int) -> TileDrop:
    """Which tiles of a bag (N x I) fall. Everything stays on the device: nothing waits for a GPU."""
    n_tiles = len(embedded)
    # Rounded to half precision, means and similarities would tie.
    with full_precision(embedded):
        rows = floating(embedded)
        means = rows.mean(dim=1)
        importance = torch.sigmoid(means)
        # By the mean itself: sigmoid keeps the order, and may round two means to one value.
        order = torch.sort(means, descending=True, stable=True).indices
        chosen, others = order[:top], order[top:]
        everything = torch.ones_like(means)
        if top == 0 or n_tiles <= top:
            return TileDrop(importance, chosen, everything, everything.new_ones(()))
        without_top = everything.index_fill(0, chosen, 0)
        # cosines; the others are divided by their lengths afterwards, which saves a copy of the bag
        lengths = torch.linalg.vector_norm(rows, dim=1).clamp_min(1e-12)
        similarity = (functional.normalize(rows[chosen], dim=1) @ rows.t() / lengths)[:, others]
        similar = torch.sort(similarity, dim=1, descending=True, stable=True).indices[:, :neighbors]
        mask = without_top.index_fill(0, others[similar.flatten()], 0)
        mask = torch.where(mask.any(), mask, without_top)
        return TileDrop(importance, chosen, mask, n_tiles / mask.sum())


class MILDropout(nn.Module):
    """The layer: N x I -> N x I."""

    def __init__(self, top: int, neighbors: int) -> None:
        super().__init__()
        self.top = top
        self.neighbors = neighbors

    def forward(self, embedded: Tensor) -> Tensor:
        if not self.training or self.top == 0 or len(embedded) <= self.top:
            return embedded
        drop = choose_dropped(embedded, self.top, self.neighbors)
        return embedded * (drop.mask * drop.scale).unsqueeze(1).to(embedded.dtype)
