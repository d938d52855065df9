"""How far predicted survival curves are from what happened: the Brier score with censored patients.

Someone censored before t may be alive or dead at t. The others stand in for them (Graf et al., 1999): with G the
probability to be followed longer than a time,

BS(t) = 1/n sum_i [ S_i(t)^2 1(T_i <= t, event_i) / G(T_i-)  +  (1 - S_i(t))^2 1(T_i > t) / G(t) ]
IBS   = 1/(t_T - t_1) * integral of BS from t_1 to t_T, by the trapezoid rule

Without censoring BS(t) is the mean of (alive at t - S(t))^2: 0.25 for S = 1/2, lower is better.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.survival.step_curves import StepCurves, censoring_curves
from asmil.tasks.checked_arrays import Floats, numbers_of
from asmil.tasks.survival_outcomes import checked_outcomes


def brier_score(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    survival_at_t: npt.ArrayLike,
    t: float,
    censoring: StepCurves | None = None,
) -> float:
    """BS(t): time, event (0/1), survival_at_t: n values. `censoring` is G, by default of these same patients.

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
    """R x T scores under R sets of weights; nan where nobody is followed longer than t (G = 0).

    survival: n x T, or R x 1 x T for a curve that all patients share; own_g: R x n values of G just before the
    patients' own times; g: R x T values of G at the times.
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
    """The mean of a curve over [t_1, t_T] by the trapezoid rule, over the last axis; one time: its value."""
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
        raise AsmilError(f"nobody is followed longer than t = {beyond:g}; give earlier times for the Brier score")
    return np.asarray(scores)
