"""Convert logits to survival curves, and curves to a risk that ranks patients (higher is worse).

S_k, ... x C, is the probability of surviving bin k: the survival at the right edge of the bin.

incidence: S_k = sum_{j > k} softmax(logits)_j, so that S_{C-1} = 0
hazard:    S_k = prod_{j <= k} (1 - sigmoid(logits)_j)
risk:      -sum_k S_k, or minus the mean survival time
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import numbers_of


def hazards(logits: Tensor) -> Tensor:
    """h, ... x C: the probability of the event in a bin for patients who reached it."""
    return torch.sigmoid(logits)


def survival_from_hazards(logits: Tensor) -> Tensor:
    """S, ... x C, from hazards; summed in the log domain, so that small values stay accurate."""
    return functional.logsigmoid(-logits).cumsum(dim=-1).exp()


def survival_from_incidence(logits: Tensor) -> Tensor:
    """S, ... x C, from incidences; summed from the end, so that small values stay accurate; the last is 0."""
    from_bin_on = torch.softmax(logits, dim=-1).flip(-1).cumsum(dim=-1).flip(-1)
    return functional.pad(from_bin_on[..., 1:], (0, 1))


def risk(survival: Tensor) -> Tensor:
    """-sum_k S_k, one number per patient."""
    return -survival.sum(dim=-1)


def mean_survival_time(survival: npt.ArrayLike, edges: npt.ArrayLike) -> Floats:
    """VLSA's mean survival time, n numbers from n x C survival and C + 1 edges; infinite for a curve of all ones.

    It is the area under the straight lines through (edge_k, S_k), k = 0 .. C - 1, up to the first time at which the
    curve is 0. A curve that does not reach 0 is extended along the line through (0, 1) and its last point. S_k is the
    survival at the END of bin k but is placed at its START here, as in the official code.
    """
    curves = np.atleast_2d(numbers_of("survival", survival))
    starts = numbers_of("edges", edges)[:-1]
    if len(starts) < 2 or curves.shape[1] != len(starts):
        raise AsmilError(
            f"a mean survival time needs at least two time bins and one survival value for each; "
            f"there are {len(starts)} bins and {curves.shape[1]} values"
        )
    if (np.diff(starts) <= 0).any():
        raise AsmilError("edges: the edges of time bins must increase; sort them and remove duplicates")
    alive = curves * np.cumprod(curves > 0, axis=1)
    area = ((alive[:, 1:] + alive[:, :-1]) / 2 * np.diff(starts)).sum(axis=1)
    last = alive[:, -1]
    with np.errstate(divide="ignore"):
        # the line 1 - t (1 - S) / t_last is S at t_last and 0 at t_last / (1 - S): a triangle
        beyond = np.where(last > 0, starts[-1] * last**2 / (2 * np.maximum(1 - last, 0)), 0.0)
    return np.asarray(area + beyond)


def survival_at(times: npt.ArrayLike, survival: npt.ArrayLike, at: npt.ArrayLike) -> Floats:
    """The values of step curves at other times: ... x q from m increasing times, ... x m survival values and q times.

    A curve is 1 before its first time, S_k from times_k on, and constant after its last time.

    >>> survival_at([1.0, 2.0], [0.8, 0.5], [0.5, 1.0, 7.0]).tolist()
    [1.0, 0.8, 0.5]
    """
    curves = np.asarray(survival, dtype=np.float64)
    steps = np.concatenate([np.ones((*curves.shape[:-1], 1)), curves], axis=-1)
    step = np.searchsorted(np.asarray(times, dtype=np.float64), np.asarray(at, dtype=np.float64), side="right")
    return np.asarray(steps[..., step])


def mean_curve(times: Sequence[npt.ArrayLike], survivals: Sequence[npt.ArrayLike]) -> tuple[Floats, Floats]:
    """The mean of step curves with different times: the union of the times, and the mean survival at each."""
    if len(times) == 0 or len(times) != len(survivals):
        raise AsmilError(
            f"{len(times)} lists of times and {len(survivals)} curves were given; give one of each per model"
        )
    union = np.unique(np.concatenate([np.asarray(each, dtype=np.float64) for each in times]))
    steps = [survival_at(each, curve, union) for each, curve in zip(times, survivals, strict=True)]
    return union, np.asarray(np.mean(steps, axis=0))


def survival_between_bins(ends: Floats, survival: Floats, times: Floats) -> Floats:
    """S at T times from S at the right edges of bins: linear from (0, 1) on, constant after the last edge.

    >>> survival_between_bins(np.array([10.0, 20.0]), np.array([0.5, 0.4]), np.array([5.0, 10.0, 30.0])).tolist()
    [0.75, 0.5, 0.4]
    """
    return np.interp(times, np.r_[0.0, ends], np.r_[1.0, survival])
