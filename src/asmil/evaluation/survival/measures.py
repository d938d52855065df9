"""All measures of the trainings of a run, under many sets of patient weights at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.evaluation.survival.brier import mean_over_time, weighted_brier
from asmil.evaluation.survival.dynamic_auc import weighted_dynamic_auc
from asmil.evaluation.survival.predictions import TestedPart
from asmil.evaluation.survival.step_curves import StepCurves, censoring_curves, survival_curves
from asmil.tasks.concordance import weighted_concordance

Floats = npt.NDArray[np.float64]
Measures = dict[tuple[int, int], dict[str, Floats]]
CURVES = ("auc", "brier", "reference")


@dataclass(frozen=True)
class Cohort:
    """All P evaluated patients, the grid over which means are taken, and single times of interest."""

    time: Floats
    event: Floats
    grid: Floats
    times: Floats


def measure_trainings(parts: Sequence[TestedPart], cohort: Cohort, weights: Floats) -> Measures:
    """Measures of every training by fold and seed: R values, or R x T for curves; weights: R x P.

    Censoring and the Kaplan-Meier reference are estimated on all patients: neither knows the model, and the patients
    of a single fold are few.
    """
    censoring = censoring_curves(cohort.time, cohort.event, weights)
    reference = survival_curves(cohort.time, cohort.event, weights)
    return {part.key: _measure(part, cohort, weights[:, part.patients], censoring, reference) for part in parts}


def _measure(
    part: TestedPart, cohort: Cohort, weights: Floats, censoring: StepCurves, reference: StepCurves
) -> dict[str, Floats]:
    asked, size = np.r_[cohort.grid, cohort.times], len(cohort.grid)
    time, event, own_g, g = part.time, part.event, censoring.before(part.time), censoring.at(asked)
    auc = weighted_dynamic_auc(time, event, part.risk, asked, weights, own_g)
    survival = part.survival(asked)
    brier = np.full_like(auc, np.nan)
    if survival is not None:
        brier = weighted_brier(time, event, survival, asked, weights, own_g, g)
    of_reference = weighted_brier(time, event, reference.at(asked)[:, None, :], asked, weights, own_g, g)
    curves = {"auc": auc[:, :size], "brier": brier[:, :size], "reference": of_reference[:, :size]}
    return {
        "c_index": weighted_concordance(time, event, part.risk, weights, "harrell"),
        "c_index_strict": weighted_concordance(time, event, part.risk, weights, "strict"),
        "mean_auc": _mean(curves["auc"], cohort.grid),
        "integrated_brier": _mean(curves["brier"], cohort.grid),
        "reference_brier": _mean(curves["reference"], cohort.grid),
        **curves,
        "auc_at": auc[:, size:],
        "brier_at": brier[:, size:],
    }


def _mean(curve: Floats, grid: Floats) -> Floats:
    return mean_over_time(curve, grid) if len(grid) else np.full(len(curve), np.nan)
