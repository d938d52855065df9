"""Survival losses with censoring: logits B x C, one bin and one event (1: observed, 0: censored) per patient.

incidence (SurvIFMLE):   p = softmax(logits), S_k = sum_{j > k} p_j
    event -log p_y                                       censored -log S_y
hazard (Patch-GCN, MCAT):   h = sigmoid(logits), S_k = prod_{j <= k} (1 - h_j), S_{-1} = 1
    event -log S_{y-1} - log h_y                         censored -log S_y

The argument of every logarithm is clamped to at least 1e-7, so each term is at most 16.118, with gradient 0 there. The
loss of a patient is (1 - alpha) (its term) + alpha (its term, if it had the event, else 0). Sums and products are
computed without subtracting from 1, so that small probabilities stay accurate.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

FLOOR = 1e-7
LOG_FLOOR = math.log(FLOOR)
LARGEST_LOG_RISK = 10.0

Reduction = Literal["mean", "none"]


def incidence_nll(
    logits: Tensor, bins: Tensor, event: Tensor, alpha: float = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    """Negative log-likelihood of incidences: the event is in bin y or, if censored, in a later bin.

    A patient censored in the last bin has no later bin: its loss is the constant 16.118, without gradient.
    """
    logits, event = _aligned(logits, event)
    log_p = functional.log_softmax(logits, dim=1)
    later = log_p.exp().flip(1).cumsum(1).flip(1)[:, 1:]
    beyond = functional.pad(later, (0, 1))  # S_k, B x C; the last is 0
    died = -_at(log_p, bins).clamp(min=LOG_FLOOR)
    lives_on = -_at(beyond, bins).clamp(min=FLOOR).log()
    return _weighed(event * died, (1 - event) * lives_on, alpha, reduction)


def hazard_nll(
    logits: Tensor, bins: Tensor, event: Tensor, alpha: float = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    """Negative log-likelihood of hazards: the patient survives the bins before y, then dies or is censored in y.

    Survival beyond the last bin is possible, so a patient censored there has a finite loss with a gradient.
    """
    logits, event = _aligned(logits, event)
    log_survival = functional.logsigmoid(-logits).cumsum(1)
    before = functional.pad(log_survival, (1, 0))[:, :-1]  # S_{k-1}, with S_{-1} = 1
    log_hazard = functional.logsigmoid(logits)
    died = -_at(before, bins).clamp(min=LOG_FLOOR) - _at(log_hazard, bins).clamp(min=LOG_FLOOR)
    lives_on = -_at(log_survival, bins).clamp(min=LOG_FLOOR)
    return _weighed(event * died, (1 - event) * lives_on, alpha, reduction)


def hazard_ce(logits: Tensor, bins: Tensor, event: Tensor, alpha: float = 0.0, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy of being dead after bin y (`ce_surv` of Patch-GCN and MCAT).

    (1 - alpha) (event: -log(1 - S_y), censored: -log S_y) + alpha (event: -log(S_{y-1} + 1e-7) - log(h_y + 1e-7)).
    In the first part S_y is clamped to at least 1e-7, and 1 - S_y is not clamped; in the second part 1e-7 is added
    instead, as in the official code.
    """
    logits, event = _aligned(logits, event)
    log_survival = functional.logsigmoid(-logits).cumsum(1)
    before = functional.pad(log_survival, (1, 0))[:, :-1]
    log_alive = _at(log_survival, bins).clamp(min=LOG_FLOOR)
    dead = (-torch.expm1(log_alive)).clamp(min=torch.finfo(logits.dtype).tiny)  # finite even if all hazards are 0
    cross_entropy = -event * dead.log() - (1 - event) * log_alive
    likelihood = -(_at(before, bins).exp() + FLOOR).log() - (_at(logits, bins).sigmoid() + FLOOR).log()
    return _reduced((1 - alpha) * cross_entropy + alpha * event * likelihood, reduction)


def cox_nll(log_risk: Tensor, time: Tensor, event: Tensor, largest: float | None = LARGEST_LOG_RISK) -> Tensor:
    """Negative partial log-likelihood of B patients, ties by Breslow: -mean_i e_i (r_i - log sum_{t_j >= t_i} exp r_j).

    The mean is over all patients; if all are censored, the loss is 0, with a graph.

    largest: log-risks are clamped to this value and get no gradient above it, as in VLSA; None does not clamp them,
        which is safe since the sum is computed in the log domain
    """
    log_risk, event = _aligned(log_risk, event)
    log_risk = log_risk if largest is None else log_risk.clamp(max=largest)
    latest_first = time.argsort(descending=True, stable=True)
    sums = log_risk[latest_first].logcumsumexp(0)
    # patients with equal times are at risk together: the sum includes all of them
    at_risk = torch.searchsorted(-time[latest_first].contiguous(), -time.contiguous(), right=True)
    return -(event * (log_risk - sums[at_risk - 1])).mean()


def _aligned(logits: Tensor, event: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in at least single precision, and the events in the same type."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits, event.to(logits)


def _at(values: Tensor, bins: Tensor) -> Tensor:
    return values.gather(1, bins[:, None])[:, 0]


def _weighed(of_events: Tensor, of_censored: Tensor, alpha: float, reduction: Reduction) -> Tensor:
    return _reduced(of_events + (1 - alpha) * of_censored, reduction)


def _reduced(per_patient: Tensor, reduction: Reduction) -> Tensor:
    return per_patient.mean() if reduction == "mean" else per_patient
