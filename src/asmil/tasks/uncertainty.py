"""How far the members of an ensemble disagree about one bag.

entropy               H(mean_k p_k)                    the total uncertainty, in nats
mutual_information    H(mean_k p_k) - mean_k H(p_k)    the part that is disagreement
variance              of p_k over the members, unbiased; 0 for a single member
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALL = 1e-8
"""Added inside logarithms."""


@dataclass(frozen=True)
class Disagreement:
    """Of K members with probabilities of C classes; see the module's text.

    entropy, mutual_information: single numbers; member_entropy: K; variance: C
    """

    entropy: Tensor
    member_entropy: Tensor
    variance: Tensor

    @property
    def mutual_information(self) -> Tensor:
        return self.entropy - self.member_entropy.mean()


def disagreement(probabilities: Tensor) -> Disagreement:
    """The disagreement of K members, from their probabilities, K x C.

    >>> contradicting = disagreement(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> round(float(contradicting.mutual_information), 4)  # log 2
    0.6931
    """
    entropies = _entropy(probabilities)
    return Disagreement(_entropy(probabilities.mean(dim=0)), entropies, member_variance(probabilities))


def member_variance(values: Tensor) -> Tensor:
    """The unbiased variance over the first axis; 0 for a single member."""
    return values.var(dim=0) if len(values) > 1 else torch.zeros_like(values[0])


def _entropy(probabilities: Tensor) -> Tensor:
    return -(probabilities * (probabilities + SMALL).log()).sum(dim=-1)
