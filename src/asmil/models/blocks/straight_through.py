"""Masks of 0 and 1 that let a gradient through."""

from __future__ import annotations

import torch
from torch import Tensor

from asmil.models.blocks.randomness import RandomModule


def harden(soft: Tensor) -> Tensor:
    """1 where `soft` is above 0.5, else 0; its gradient is that of `soft`."""
    hard = (soft > 0.5).to(soft.dtype)
    return hard + (soft - soft.detach())


class GumbelMask(RandomModule):
    """A mask from scores z: 1 where sigmoid((z + g) / T) > 0.5, with the gradient of that sigmoid.

    While training, g is the difference of two Gumbel(0, 1) variables, which is one logistic variable,
    log u - log(1 - u) of a uniform u. In inference there is no noise and no temperature: 1 where sigmoid(z) > 0.5.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores: Tensor) -> Tensor:
        if not self.training:
            return harden(torch.sigmoid(scores))
        uniform = self.uniform(scores.shape, scores)
        # the generator may give 0 exactly
        noise = torch.logit(uniform, eps=1e-7)
        return harden(torch.sigmoid((scores + noise) / self.temperature))
