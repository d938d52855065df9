"""Kaplan-Meier curves under many sets of patient weights at once.

A bootstrap resample that draws patient i w_i times has the curve of the original patients with the integer
weights w, so one pass over R x n weights answers R resamples. Letters: n patients, R sets of weights, m distinct
times u.

Survival     S(u_k) = prod_{j <= k} (1 - d_j / n_j)              d events at u_j, n still followed just before u_j
Censoring    G(u_k) = prod_{j <= k} (1 - c_j / (n_j - d_j))      c censored at u_j: at equal times events come first
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.tasks.checked_arrays import Floats


@dataclass(frozen=True)
class StepCurves:
    """R curves that start at 1 and fall at m times; `values` is R x (m + 1), the value 1 in front."""

    times: Floats
    values: Floats

    def at(self, times: npt.ArrayLike) -> Floats:
        """R x T values at the given times; a step counts at its own time."""
        return self.values[:, np.searchsorted(self.times, np.atleast_1d(times), side="right")]

    def before(self, times: npt.ArrayLike) -> Floats:
        """R x T values just before the given times."""
        return self.values[:, np.searchsorted(self.times, np.atleast_1d(times), side="left")]


def survival_curves(time: Floats, event: Floats, weights: Floats | None = None) -> StepCurves:
    """Kaplan-Meier curves of the event: time, event (0/1): n; weights: R x n, ones when not given."""
    times, followed, events, _ = _counts(time, event, weights)
    return _curves(times, events, followed)


def censoring_curves(time: Floats, event: Floats, weights: Floats | None = None) -> StepCurves:
    """Kaplan-Meier curves of the censoring: the probability to be followed longer than a time."""
    times, followed, events, censored = _counts(time, event, weights)
    return _curves(times, censored, followed - events)


def _counts(time: Floats, event: Floats, weights: Floats | None) -> tuple[Floats, Floats, Floats, Floats]:
    """m times, and R x m weights of those still followed, with the event and censored there."""
    time, died = np.asarray(time, dtype=np.float64), np.asarray(event) > 0
    weights = np.ones((1, len(time))) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(time, kind="stable")
    ordered, weights, died = time[order], weights[:, order], died[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    leaving = np.add.reduceat(weights, starts, axis=1)
    events = np.add.reduceat(weights * died, starts, axis=1)
    followed = np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1]
    return ordered[starts], followed, events, leaving - events


def _curves(times: Floats, falling: Floats, followed: Floats) -> StepCurves:
    hazard = np.where(followed > 0, falling / np.where(followed > 0, followed, 1.0), 0.0)
    values = np.cumprod(1.0 - hazard, axis=1)
    return StepCurves(times, np.concatenate([np.ones((len(values), 1)), values], axis=1))
