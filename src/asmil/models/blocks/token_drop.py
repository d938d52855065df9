"""Token dropping: which tokens of a set are kept in a training step."""

from __future__ import annotations

from torch import Tensor

from asmil.errors import AsmilError
from asmil.models.blocks.randomness import RandomModule


class TokenDrop(RandomModule):
    """Which of T tokens are kept in this training step, as a mask (T booleans); None when all are, as in inference.

    `rate` drops each token with that probability, independently; if none is left, one drawn uniformly is kept.
    `count` instead drops exactly that many.
    """

    def __init__(self, rate: float = 0.0, count: int | None = None) -> None:
        super().__init__()
        if not 0 <= rate <= 1:
            raise AsmilError(f"token drop = {rate}: it must lie between 0 and 1")
        self.rate = rate
        self.count = count

    def forward(self, tokens: Tensor) -> Tensor | None:
        n_tokens = tokens.shape[0]
        if not self.training or not (self.count if self.count is not None else self.rate):
            return None
        draws = self.uniform((n_tokens,), tokens)
        if self.count is not None:
            return draws.argsort().argsort() >= self.count
        kept = draws >= self.rate
        # The largest of independent uniform draws is any token with equal probability.
        return kept | ((draws == draws.max()) & ~kept.any())
