"""Kaplan-Meier curves under many sets of patient weights at once.

A bootstrap resample that draws patient i w_i times has the curve of the original patients with the integer
weights w, so one pass over R x n weights computes R resamples. Notation: n patients, R sets of weights, m distinct
times u.

Survival     S(u_k) = prod_{j <= k} (1 - d_j / n_j)              d events at u_j, n still followed just before u_j
Censoring    G(u_k) = prod_{j <= k} (1 - c_j / (n_j - d_j))      c censored at u_j: at equal times events come first
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import checked_outcomes, floats_of, numbers_of
from asmil.tasks.weighted import binary_auc


@dataclass(frozen=True)
class StepCurves:
    """R curves that start at 1 and fall at m times; `values` is R x (m + 1), starting with 1."""

    times: Floats
    values: Floats

    def at(self, times: npt.ArrayLike) -> Floats:
        """R x T values at the given times; a step takes effect at its own time."""
        return self.values[:, np.searchsorted(self.times, np.atleast_1d(times), side="right")]

    def before(self, times: npt.ArrayLike) -> Floats:
        """R x T values just before the given times."""
        return self.values[:, np.searchsorted(self.times, np.atleast_1d(times), side="left")]


def survival_curves(time: Floats, event: Floats, weights: Floats | None = None) -> StepCurves:
    """Kaplan-Meier curves of the event: time, event (0/1): n; weights: R x n, by default ones."""
    times, followed, events, _ = _counts(time, event, weights)
    return _curves(times, events, followed)


def censoring_curves(time: Floats, event: Floats, weights: Floats | None = None) -> StepCurves:
    """Kaplan-Meier curves of the censoring: the probability of being followed longer than a time."""
    times, followed, events, censored = _counts(time, event, weights)
    return _curves(times, censored, followed - events)


def _counts(time: Floats, event: Floats, weights: Floats | None) -> tuple[Floats, Floats, Floats, Floats]:
    """m times, and R x m weights of the patients still followed, with an event, and censored at these times."""
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


def brier_score(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    survival_at_t: npt.ArrayLike,
    t: float,
    censoring: StepCurves | None = None,
) -> float:
    """BS(t): time, event (0/1), survival_at_t: n values. `censoring` is G, by default of the same patients.

    >>> brier_score([1, 2, 3, 4], [1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5], 2.5)
    0.25
    """
    scores = _plain_scores(time, event, np.asarray(survival_at_t, dtype=np.float64)[:, None], [t], censoring)
    return float(scores[0])


def integrated_brier_score(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    survival: npt.ArrayLike,
    times: npt.ArrayLike,
    censoring: StepCurves | None = None,
) -> float:
    """IBS from the first to the last of T increasing times; survival: n x T values of S_i at them."""
    return float(mean_over_time(_plain_scores(time, event, survival, times, censoring), np.asarray(times, float)))


def weighted_brier(
    time: Floats, event: Floats, survival: Floats, times: Floats, weights: Floats, own_g: Floats, g: Floats
) -> Floats:
    """R x T scores under R sets of weights; nan if no patient is followed longer than t (G = 0).

    survival: n x T, or R x 1 x T for a curve shared by all patients; own_g: R x n values of G just before each
    patient's time; g: R x T values of G at the times.
    """
    time, died = time[:, None], (event > 0)[:, None]
    past, future = ((time <= times) & died).astype(np.float64), (time > times).astype(np.float64)
    standing_in = np.where(weights > 0, weights / np.where(own_g > 0, own_g, 1.0), 0.0)
    if survival.ndim == 3:
        shared = survival[:, 0, :]
        lost, alive = shared**2 * (standing_in @ past), (1 - shared) ** 2 * (weights @ future)
    else:
        lost, alive = standing_in @ (survival**2 * past), weights @ ((1 - survival) ** 2 * future)
    total = weights.sum(axis=1, keepdims=True)
    scores = (lost + alive / np.where(g > 0, g, 1.0)) / np.where(total > 0, total, 1.0)
    return np.where((g > 0) & (total > 0), scores, np.nan)


def mean_over_time(values: Floats, times: Floats) -> Floats:
    """The mean of a curve over [t_1, t_T] by the trapezoid rule, along the last axis; with one time, its value."""
    if len(times) == 1:
        return values[..., 0]
    areas = np.diff(times) * (values[..., 1:] + values[..., :-1]) / 2
    return np.asarray(areas.sum(axis=-1) / (times[-1] - times[0]))


def _plain_scores(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    survival: npt.ArrayLike,
    times: npt.ArrayLike,
    censoring: StepCurves | None,
) -> Floats:
    time, observed = checked_outcomes(time, event)
    event = observed.astype(np.float64)
    survival, times = numbers_of("survival", survival), np.atleast_1d(numbers_of("times", times))
    if times.size == 0 or survival.shape != (len(time), len(times)):
        raise AsmilError(
            f"the Brier score needs one event and {len(times)} survival value(s) for each of {len(time)} times, "
            f"but got {event.shape} events and survival of shape {survival.shape}"
        )
    if (np.diff(times) <= 0).any():
        raise AsmilError("the times of an integrated Brier score must increase")
    censoring = censoring_curves(time, event) if censoring is None else censoring
    scores = weighted_brier(
        time, event, survival, times, np.ones((1, len(time))), censoring.before(time), censoring.at(times)
    )[0]
    if np.isnan(scores).any():
        beyond = float(times[np.isnan(scores)][0])
        raise AsmilError(f"no patient is followed longer than t = {beyond:g}; give earlier times for the Brier score")
    return np.asarray(scores)


def time_dependent_auc(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    risk: npt.ArrayLike,
    times: npt.ArrayLike,
    censoring: StepCurves | None = None,
) -> Floats:
    """AUC at T times; nan if no patient had the event by t or none is followed longer.

    time, event (0/1), risk (higher is worse): n values; censoring: G, by default of the same patients

    >>> time_dependent_auc([1, 2, 3, 4], [1, 1, 1, 1], [4, 1, 3, 2], [2.5]).tolist()
    [0.5]
    """
    time, observed = checked_outcomes(time, event)
    event = observed.astype(np.float64)
    risk, times = floats_of("risk", risk), np.atleast_1d(numbers_of("times", times))
    if time.size == 0 or times.size == 0:
        raise AsmilError("the time-dependent AUC needs at least one patient and one time t")
    if risk.shape != time.shape:
        raise AsmilError(f"the AUC needs as many risks ({risk.size}) as times ({time.size}); give one per patient")
    if np.isnan(risk).any():
        raise AsmilError("a risk is nan; the time-dependent AUC needs a number for every patient")
    own_g = (censoring_curves(time, event) if censoring is None else censoring).before(time)
    if (own_g[0][(event > 0) & (time <= times.max())] == 0).any():
        raise AsmilError("an event is later than the follow-up of the censoring curve; give earlier times for AUC(t)")
    return np.asarray(weighted_dynamic_auc(time, event, risk, times, np.ones((1, len(time))), own_g)[0])


def weighted_dynamic_auc(
    time: Floats, event: Floats, risk: Floats, times: Floats, weights: Floats, own_g: Floats
) -> Floats:
    """R x T AUCs under R sets of weights; own_g: R x n values of G just before each patient's time."""
    standing_in = np.where(weights > 0, weights / np.where(own_g > 0, own_g, 1.0), 0.0)
    columns = []
    for t in times:
        case, control = (time <= t) & (event > 0), time > t
        judged = case | control
        used = np.where(case, standing_in, weights)[:, judged]
        defined = case.any() and control.any()
        columns.append(binary_auc(case[judged], risk[judged], used) if defined else np.full(len(weights), np.nan))
    return np.stack(columns, axis=1)
