"""Standardize the features of tiles with the mean and standard deviation of the training tiles."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

SMALLEST_SCALE = 1e-6


class Standardize(nn.Module):
    """(x - center) / scale, for each of D features; the identity until `fit` is called."""

    center: Tensor
    scale: Tensor

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(in_features))
        self.register_buffer("scale", torch.ones(in_features))

    @torch.no_grad()
    def fit(self, bags: Iterable[Tensor]) -> None:
        """Take mean and standard deviation over the tiles (N x D) of all bags; a constant feature becomes 0."""
        count, total, squares = 0, torch.zeros_like(self.center).double(), torch.zeros_like(self.center).double()
        for features in bags:
            tiles = features.to(total)
            count += len(tiles)
            total += tiles.sum(dim=0)
            squares += tiles.square().sum(dim=0)
        mean = total / count
        self.center.copy_(mean)
        self.scale.copy_((squares / count - mean.square()).clamp_min(SMALLEST_SCALE**2).sqrt())

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.center) / self.scale


def fit_standardization(model: nn.Module, bags: Iterable[Tensor]) -> None:
    """Fit the standardization of a model, if it has one, to the features of the training bags (N x D each)."""
    for part in model.modules():
        if isinstance(part, Standardize):
            part.fit(bags)
