"""The confounder dictionary of IBMIL: prototypes of bags, and how a bag reads them.

u_j = softmax_j((W_k p_j + b_k) . (W_q m + b_q) / sqrt(J))        prototypes p_j, bag vector m
c   = sum_j u_j p_j
merged = [m; c], m + c or m - c
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.models.blocks.kmeans import cluster
from asmil.models.blocks.randomness import Dropout

Merge = Literal["cat", "add", "sub"]
SEED = 66
"""The seed of the official clustering."""


def find_prototypes(rows: Tensor, k: int, seed: int = SEED) -> Tensor:
    """Prototypes of bag vectors: S x d -> at most k x d.

    The rows are clustered by direction (each divided by its norm); a prototype is the mean of the rows of a cluster as
    they are. A cluster without rows, as there may be with fewer distinct rows than k, gives none.
    """
    directions = rows / (rows.norm(dim=1, keepdim=True) + 1e-10)
    labels = cluster(directions, k, seed).to(rows.device)
    return torch.stack([rows[labels == label].mean(dim=0) for label in labels.unique()])


class ConfounderDictionary(nn.Module):
    """K prototypes, kept in the state dict, and the attention of bag vectors over them.

    Until `fill` is called the prototypes are random. If training bags gave fewer than K, `used` marks the
    rows that hold one; the others are ignored.

    dropout: on the prototypes before their keys, in training
    learned: the prototypes are trained
    """

    prototypes: Tensor
    used: Tensor

    def __init__(
        self, size: int, width: int, joint: int, merge: Merge, *, dropout: float = 0.0, learned: bool = False
    ) -> None:
        super().__init__()
        start = torch.randn(size, width) / math.sqrt(width)
        if learned:
            self.prototypes = nn.Parameter(start)
        else:
            self.register_buffer("prototypes", start)
        self.register_buffer("used", torch.ones(size, dtype=torch.bool))
        self.query = nn.Linear(width, joint)
        self.key = nn.Linear(width, joint)
        self.merge = merge
        self.merged_width = 2 * width if merge == "cat" else width
        self.dropout = Dropout(dropout)

    @torch.no_grad()
    def fill(self, prototypes: Tensor) -> None:
        """Set k <= K prototypes, k x d."""
        count = len(prototypes)
        self.prototypes.zero_()[:count] = prototypes.to(self.prototypes)
        self.used.fill_(False)[:count] = True

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Bag vectors R x d -> merged R x (2 d or d), and u, R x K."""
        keys = self.key(self.dropout(self.prototypes))
        scores = functional.linear(self.query(rows), keys) / math.sqrt(keys.shape[1])
        attention = torch.softmax(scores.masked_fill(~self.used, -torch.inf), dim=-1)
        mixture = attention.to(rows.dtype) @ self.prototypes.to(rows.dtype)
        if self.merge == "cat":
            return torch.cat([rows, mixture], dim=-1), attention
        return (rows + mixture if self.merge == "add" else rows - mixture), attention
