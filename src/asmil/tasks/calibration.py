"""Calibration of probabilities: reliability, expected calibration error, and temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import Classes, numbers_of, probabilities_of

Integers = npt.NDArray[np.integer]

BINS = 10
SMALLEST_PROBABILITY = 1e-12
ROUNDING = 1e-6
TEMPERATURES = (0.05, 20.0)
"""Search range of the temperature; if all slides are predicted correctly, the optimum would be 0."""


@dataclass(frozen=True)
class Reliability:
    """Slides binned by the probability of the predicted class, in bins of equal width; empty bins are nan.

    confidence: mean probability of the predicted class; accuracy: share predicted correctly; count: slides
    """

    confidence: Floats
    accuracy: Floats
    count: npt.NDArray[np.int64]

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean of |accuracy - confidence| over bins, weighted by slides."""
        distance = np.abs(self.accuracy - self.confidence)
        return float(np.nansum(distance * self.count) / self.count.sum())


def reliability(target: Integers, probabilities: Floats, bins: int = BINS) -> Reliability:
    """The reliability of n x K probabilities; bin k contains confidences from k / bins to (k + 1) / bins."""
    truth, probabilities = _checked(target, probabilities)
    if bins < 1:
        raise AsmilError(f"bins is {bins}; give at least 1")
    called, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    bin_index = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(bin_index, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(bin_index, confidence, bins) / count
        right = np.bincount(bin_index, called == truth, bins) / count
    return Reliability(mean, right, count)


def expected_calibration_error(target: Integers, probabilities: Floats, bins: int = BINS) -> float:
    """ECE of the predicted class, in bins of equal width."""
    return reliability(target, probabilities, bins).ece


def brier_score(target: Integers, probabilities: Floats) -> float:
    """Mean over slides of the squared distance between probabilities and the true class, summed over classes."""
    truth, probabilities = _checked(target, probabilities)
    wanted = np.eye(probabilities.shape[1])[truth]
    return float(((probabilities - wanted) ** 2).sum(axis=1).mean())


def negative_log_likelihood(target: Integers, probabilities: Floats) -> float:
    """Mean of -ln p(true class)."""
    truth, probabilities = _checked(target, probabilities)
    of_target = probabilities[np.arange(len(probabilities)), truth]
    return float(-np.log(np.maximum(of_target, SMALLEST_PROBABILITY)).mean())


def fit_temperature(target: Integers, probabilities: Floats) -> float:
    """The temperature T that minimizes the negative log-likelihood of the scaled probabilities."""
    if len(target) == 0:
        raise AsmilError("fitting a temperature needs validation slides, and there are none")

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(target, scale_probabilities(probabilities, float(np.exp(log_temperature))))

    low, high = np.log(TEMPERATURES)
    from scipy.optimize import minimize_scalar

    return float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6}).x))


def scale_probabilities(probabilities: Floats, temperature: float) -> Floats:
    """softmax(ln p / T): the probabilities that the model's logits, divided by T, would have given."""
    given = numbers_of("probabilities", probabilities)
    if given.ndim != 2 or not temperature > 0:
        raise AsmilError(
            f"probabilities of shape {given.shape} cannot be scaled by the temperature {temperature}; give one "
            "row per slide, one column per class, and a temperature above 0"
        )
    logits = np.log(np.maximum(given, SMALLEST_PROBABILITY)) / temperature
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _checked(target: Integers, probabilities: Floats) -> tuple[Classes, Floats]:
    truth, given = probabilities_of(target, probabilities)
    if given.min() < -ROUNDING or given.max() > 1 + ROUNDING:
        raise AsmilError("probabilities: some values are not between 0 and 1; give probabilities, not other scores")
    return truth, given
