"""Rule out a class so that at most a given share of its patients is missed.

The class is ruled out if its class-conditional p-value is at or below a level; see `conformal`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr, betaincinv

from asmil.errors import AsmilError
from asmil.evaluation.uncertainty.conformal import fewest_patients, refuse_fewer
from asmil.evaluation.uncertainty.held_out import ROUNDING
from asmil.tables.arrays import Booleans, Floats


def rule_out_level(n_patients: int, max_missed: float, positive: str, confidence: float | None = None) -> float:
    """The level at or below which the p-value of the positive class rules it out; an error if there is none.

    Without a confidence, the missed share is at most `max_missed` on average over calibration sets (conformal risk
    control). With one, it is at most `max_missed` in this share of calibration sets: the level is k / (n + 1) with the
    largest k for which Binomial(n, max_missed) <= k - 1 has a probability of at most 1 - confidence.

    n_patients: calibration patients of the positive class; p-values must be class-conditional
    """
    for name, share in (("the missed share", max_missed), ("the confidence", confidence)):
        if share is not None and not 0 < share < 1:
            raise AsmilError(f"{name} must be between 0 and 1, not {share:g}")
    asked = f"at most {100 * max_missed:g} % missed"
    if confidence is None:
        refuse_fewer(n_patients, fewest_patients(max_missed), asked, positive)
        return max_missed
    needed = math.ceil(math.log(1 - confidence) / math.log(1 - max_missed) - ROUNDING)
    refuse_fewer(n_patients, needed, f"{asked} with a confidence of {confidence:g}", positive)
    allowed = bdtr(np.arange(n_patients), n_patients, max_missed) <= 1 - confidence + ROUNDING
    return float(allowed.sum() / (n_patients + 1))


def missed_bound(n_patients: int, level: float, confidence: float = 0.95) -> float:
    """The share of positive patients that a rule-out at this level misses at most, with this confidence.

    With k = floor(level (n + 1)), the missed share is at most Beta(k, n + 1 - k) distributed.
    """
    k = math.floor(level * (n_patients + 1) + ROUNDING)
    return float(betaincinv(k, n_patients + 1 - k, confidence)) if k else 0.0


def ruled_out(p_values: Floats, level: float) -> Booleans:
    """Whether the p-values of the positive class rule it out."""
    return np.asarray(p_values <= level + ROUNDING)
