"""Discrete hazards: logits of K time bins -> the probability to live on, and a risk to rank patients by.

h_k = sigmoid(logit_k)     S_k = prod_{j <= k} (1 - h_j)     risk = -sum_k S_k
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def hazards(logits: Tensor) -> Tensor:
    """h, ... x K: the probability of the event in a bin for those who reached it."""
    return torch.sigmoid(logits)


def survival_from_hazards(logits: Tensor) -> Tensor:
    """S, ... x K: the probability to live past each bin. Summed in the log domain, so that small ones keep digits."""
    return functional.logsigmoid(-logits).cumsum(dim=-1).exp()


def risk(survival: Tensor) -> Tensor:
    """-sum_k S_k, one number a patient: higher is worse."""
    return -survival.sum(dim=-1)
