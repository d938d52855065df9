"""Net benefit of acting on a prediction, for decision curves (Vickers and Elkin 2006).

Whoever acts at a probability of at least t accepts (1 - t) / t unnecessary actions for one that is needed:

    net benefit(t) = TP / n - FP / n * t / (1 - t)

Survival: TP / n = P(acted) (1 - S(time | acted)) with S by Kaplan-Meier, FP / n the rest of P(acted).
"""

from __future__ import annotations

import numpy as np

from asmil.tables.arrays import Floats
from asmil.tasks.survival_metrics import survival_curves


def net_benefit(outcome: Floats, probabilities: Floats, thresholds: Floats, weights: Floats | None = None) -> Floats:
    """R x T net benefits per patient under R sets of weights (default: one of ones); outcome: n values of 0 and 1.

    >>> net_benefit(np.array([1.0, 0.0]), np.array([0.9, 0.4]), np.array([0.2, 0.5])).tolist()
    [[0.375, 0.5]]
    """
    weights = np.ones((1, len(outcome))) if weights is None else weights
    acted = (probabilities[:, None] >= thresholds).astype(np.float64)
    total = weights.sum(axis=1, keepdims=True)
    true, false = (weights * outcome) @ acted, (weights * (1 - outcome)) @ acted
    return np.asarray((true - false * thresholds / (1 - thresholds)) / total)


def survival_net_benefit(
    time: Floats,
    event: Floats,
    probabilities: Floats,
    horizon: float,
    thresholds: Floats,
    weights: Floats | None = None,
) -> Floats:
    """R x T net benefits for the event by a time; probabilities: of the event by then; nan if no one is followed."""
    weights = np.ones((1, len(time))) if weights is None else weights
    total, columns = weights.sum(axis=1), []
    for threshold in thresholds:
        acted = probabilities >= threshold
        share = weights[:, acted].sum(axis=1) / total
        if not acted.any():
            columns.append(np.zeros(len(weights)))
            continue
        survival = survival_curves(time[acted], event[acted], weights[:, acted]).at(horizon)[:, 0]
        survival = np.where(time[acted].max() < horizon, np.nan, survival)
        columns.append(share * (1 - survival) - share * survival * threshold / (1 - threshold))
    return np.stack(columns, axis=1)
