"""Weighted logistic regression under many sets of weights at once, and calibration by recalibrating probabilities.

n patients with outcomes y (0/1) and predicted probabilities p, R sets of weights:

calibration in the large   logit P(y = 1) = a + logit p          a = 0 if the mean prediction is right
calibration slope          logit P(y = 1) = a + b logit p        b < 1 if predictions are too extreme
calibration curve          logit P(y = 1) = a + b x + c s(x)     x = logit p, s: restricted cubic spline
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, logit

from asmil.tables.arrays import Floats

SMALLEST = 1e-7
"""Probabilities are kept this far from 0 and 1, where their logit is infinite."""
STEPS, LARGEST_STEP, CLOSE, FOUND = 100, 1.0, 1e-8, 1e-4
"""Of Newton's method: its steps, their largest size, and the size of the last at which it ends and is believed."""
LARGEST = 30.0
"""Larger coefficients mean that the outcomes are separated, so that no maximum exists."""
KNOTS = (0.1, 0.5, 0.9)
"""Quantiles of the logits at which the spline has its knots."""


def logits_of(probabilities: Floats) -> Floats:
    """The logits of probabilities, finite also at 0 and 1."""
    return np.asarray(logit(np.clip(probabilities, SMALLEST, 1 - SMALLEST)))


def logistic_fits(design: Floats, outcome: Floats, weights: Floats, offset: Floats) -> Floats:
    """R x k coefficients of `logit P(y = 1) = offset + design @ coefficients`, by Newton's method.

    design: n x k; outcome, offset: n; weights: R x n. nan where the likelihood has no maximum.
    """
    n_columns = design.shape[1]
    products = (design[:, :, None] * design[:, None, :]).reshape(len(design), -1)
    fitted, step = np.zeros((len(weights), n_columns)), np.ones((len(weights), n_columns))
    for _ in range(STEPS):
        predicted = expit(offset + fitted @ design.T)
        gradient = (weights * (outcome - predicted)) @ design
        curvature = (weights * predicted * (1 - predicted)) @ products
        square = curvature.reshape(-1, n_columns, n_columns) + 1e-10 * np.eye(n_columns)
        step = np.linalg.solve(square, gradient[:, :, None])[:, :, 0]
        step *= np.minimum(1.0, LARGEST_STEP / np.maximum(np.abs(step).max(axis=1, keepdims=True), CLOSE))
        fitted = np.clip(fitted + step, -2 * LARGEST, 2 * LARGEST)
        if np.abs(step).max() < CLOSE:
            break
    found = (np.abs(step).max(axis=1) <= FOUND) & (np.abs(fitted).max(axis=1) <= LARGEST)
    return np.where(np.asarray(found)[:, None], fitted, np.nan)


def calibration_intercepts(outcome: Floats, probabilities: Floats, weights: Floats) -> Floats:
    """R values of calibration in the large."""
    return logistic_fits(np.ones((len(outcome), 1)), outcome, weights, logits_of(probabilities))[:, 0]


def calibration_slopes(outcome: Floats, probabilities: Floats, weights: Floats) -> Floats:
    """R calibration slopes; nan if all probabilities are the same."""
    x = logits_of(probabilities)
    if np.ptp(x) == 0:
        return np.full(len(weights), np.nan)
    # fitted as the difference from a slope of 1, where most models are
    return 1 + logistic_fits(np.stack([np.ones_like(x), x], axis=1), outcome, weights, x)[:, 1]


def calibration_curves(outcome: Floats, probabilities: Floats, weights: Floats, at: Floats) -> Floats:
    """R x T observed shares at T predicted probabilities, from a spline in the logits with three knots."""
    x, asked = logits_of(probabilities), logits_of(at)
    knots = np.quantile(x, KNOTS)
    curved = np.diff(knots).min() > SMALLEST
    design, shown = (
        np.stack([np.ones_like(v), v, *([_spline(v, knots)] if curved else [])], axis=1) for v in (x, asked)
    )
    fitted = logistic_fits(design, outcome, weights, x)
    return np.asarray(expit(asked + fitted @ shown.T))


def _spline(x: Floats, knots: Floats) -> Floats:
    """The nonlinear term of a restricted cubic spline with three knots (Harrell): linear outside of them."""
    first, middle, last = (np.maximum(x - knot, 0) ** 3 for knot in knots)
    low, center, high = knots
    bent = first - middle * (high - low) / (high - center) + last * (center - low) / (high - center)
    return np.asarray(bent / (high - low) ** 2)
