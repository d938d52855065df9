"""Choose the threshold of a two-class model on validation slides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tasks.checked_arrays import classes_of, numbers_of, same_length

RULES = ("youden", "f1", "sensitivity:S", "specificity:S")


def choose_threshold(positive: npt.ArrayLike, score: npt.ArrayLike, rule: str = "youden") -> float:
    """The threshold t for which `score >= t` is best by a rule; midway between two scores.

    youden: the highest sensitivity + specificity
    f1: the highest F1 of the positive class
    sensitivity:S: the highest specificity with a sensitivity of at least S (0 to 1); specificity:S likewise
    Ties are resolved in favor of the threshold nearest to 0.5.
    """
    is_positive, score = classes_of("positive", positive, 2) == 1, numbers_of("score", score)
    same_length(positive=len(is_positive), score=score.size)
    n_positive, n_negative = int(is_positive.sum()), int((~is_positive).sum())
    if n_positive == 0 or n_negative == 0:
        raise AsmilError("choosing a threshold needs slides of both classes, but all slides belong to one")
    values = np.unique(score)
    thresholds = np.r_[values[0], (values[1:] + values[:-1]) / 2, np.nextafter(values[-1], np.inf)]
    ordered_positive, ordered_negative = np.sort(score[is_positive]), np.sort(score[~is_positive])
    true_positives = n_positive - np.searchsorted(ordered_positive, thresholds, side="left")
    false_positives = n_negative - np.searchsorted(ordered_negative, thresholds, side="left")
    sensitivity, specificity = true_positives / n_positive, 1 - false_positives / n_negative
    name, least = _parsed(rule)
    if name == "youden":
        worth = np.asarray(sensitivity + specificity)
    elif name == "f1":
        worth = np.asarray(2 * true_positives / (true_positives + false_positives + n_positive))
    else:
        kept, other = (sensitivity, specificity) if name == "sensitivity" else (specificity, sensitivity)
        worth = np.where(kept >= least - 1e-12, other, -1.0)
    best = np.flatnonzero(worth >= worth.max() - 1e-12)
    return float(thresholds[best[np.argmin(np.abs(thresholds[best] - 0.5))]])


def _parsed(rule: str) -> tuple[str, float]:
    name, _, share = rule.partition(":")
    if name in ("youden", "f1") and not share:
        return name, 0.0
    try:
        least = float(share)
    except ValueError:
        least = -1.0
    if name not in ("sensitivity", "specificity") or not 0 <= least <= 1:
        raise AsmilError(f"the threshold rule {rule!r} is unknown; use {', '.join(RULES)}, with S from 0 to 1")
    return name, least
