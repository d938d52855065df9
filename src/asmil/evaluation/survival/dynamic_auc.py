"""How well a risk tells who has the event by a time t: cumulative/dynamic AUC with censored patients (Uno et al.).

AUC(t) = sum_ij u_i psi(risk_i, risk_j) / sum_ij u_i      i: T_i <= t with the event,  j: T_j > t
u_i = 1 / G(T_i-),  psi = 1, 1/2, 0 for >, =, <

G is the probability to be followed longer than a time: the events that were seen stand in for those hidden by
censoring. Patients censored by t are neither i nor j. Without censoring this is the AUC of "event by t".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.survival.step_curves import StepCurves, censoring_curves
from asmil.tasks.checked_arrays import Floats, floats_of, numbers_of
from asmil.tasks.survival_outcomes import checked_outcomes
from asmil.tasks.weighted import binary_auc


def time_dependent_auc(
    time: npt.ArrayLike,
    event: npt.ArrayLike,
    risk: npt.ArrayLike,
    times: npt.ArrayLike,
    censoring: StepCurves | None = None,
) -> Floats:
    """AUC at T times: time, event (0/1), risk (higher is worse): n values. `censoring` is G, by default of these
    same patients. nan where nobody had the event by t or nobody is followed longer.

    >>> time_dependent_auc([1, 2, 3, 4], [1, 1, 1, 1], [4, 1, 3, 2], [2.5]).tolist()
    [0.5]
    """
    time, observed = checked_outcomes(time, event)
    event = observed.astype(np.float64)
    risk, times = floats_of("risk", risk), np.atleast_1d(numbers_of("times", times))
    if time.size == 0 or times.size == 0:
        raise AsmilError("the time-dependent AUC needs at least one patient and one time t")
    if risk.shape != time.shape:
        raise AsmilError(f"the AUC needs as many risks ({risk.size}) as times ({time.size}); give one a patient")
    if np.isnan(risk).any():
        raise AsmilError("a risk is not a number; the time-dependent AUC cannot rank it")
    own_g = (censoring_curves(time, event) if censoring is None else censoring).before(time)
    if (own_g[0][(event > 0) & (time <= times.max())] == 0).any():
        raise AsmilError("an event lies beyond the follow-up behind the censoring curve; give earlier times for AUC(t)")
    return np.asarray(weighted_dynamic_auc(time, event, risk, times, np.ones((1, len(time))), own_g)[0])


def weighted_dynamic_auc(
    time: Floats, event: Floats, risk: Floats, times: Floats, weights: Floats, own_g: Floats
) -> Floats:
    """R x T areas under R sets of weights; own_g: R x n values of G just before the patients' own times."""
    standing_in = np.where(weights > 0, weights / np.where(own_g > 0, own_g, 1.0), 0.0)
    columns = []
    for t in times:
        case, control = (time <= t) & (event > 0), time > t
        judged = case | control
        used = np.where(case, standing_in, weights)[:, judged]
        defined = case.any() and control.any()
        columns.append(binary_auc(case[judged], risk[judged], used) if defined else np.full(len(weights), np.nan))
    return np.stack(columns, axis=1)
