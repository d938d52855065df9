"""The smooth top-1 SVM loss (Berrada, Zisserman, Kumar, Smooth Loss Functions for Deep Top-k Classification, 2018).

    hard    max_j (u_j + alpha [j != t]) - u_t
    smooth  tau log sum_j exp((u_j + alpha [j != t] - u_t) / tau)

for the scores u of a sample with class t. The hard form is used where the largest score lies at least tau ln(1000)
above the second: there the two agree up to rounding. That choice looks at the scores alone, not at the class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_DECISIVE = math.log(1000)


def is_decisive(scores: Tensor, tau: float = 1.0) -> Tensor:
    """Whether the hard form is used for each sample: scores n x C -> n booleans."""
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    return first - second >= tau * _DECISIVE


def smooth_svm(scores: Tensor, targets: Tensor, alpha: float = 1.0, tau: float = 1.0) -> Tensor:
    """The loss of each sample: scores n x C, targets n class indices -> n.

    alpha: the margin
    tau: the temperature
    """
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    own = functional.one_hot(targets, scores.shape[1]).to(scores.dtype)
    excess = scores + alpha * (1 - own) - scores.gather(1, targets.unsqueeze(1))
    hard = excess.amax(dim=1)
    smooth = tau * torch.logsumexp(excess / tau, dim=1)
    return torch.where(is_decisive(scores, tau), hard, smooth)
