"""Numbers of survival evaluations as text."""

from __future__ import annotations

import math
from collections.abc import Iterable

from asmil.evaluation.survival.summary import SurvivalEvaluation


def format_months(*ends: float) -> str:
    """One number of months, or two as a range; an infinite one was not reached.

    >>> format_months(12.34, float("inf"))
    '12.3 to not reached'
    """
    return " to ".join(
        "–" if math.isnan(end) else f"{end:.1f}" if math.isfinite(end) else "not reached" for end in ends
    )


def format_p(p: float) -> str:
    """A p-value; a small one as a bound.

    >>> format_p(0.00001)
    'p < 0.0001'
    """
    if math.isnan(p):
        return "undefined"
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.4f}" if p < 0.01 else f"p = {p:.3f}"


def format_sizes(evaluations: Iterable[SurvivalEvaluation]) -> str:
    """How many patients were judged; several answers where the runs differ."""
    sizes = dict.fromkeys((evaluation.n_patients, evaluation.n_events) for evaluation in evaluations)
    return " or ".join(f"{patients} patients, {events} of them with the event" for patients, events in sizes)


def format_trainings(evaluation: SurvivalEvaluation) -> str:
    """How many trainings stand behind a number, and of what kind."""
    folds, seeds = evaluation.n_folds, evaluation.n_seeds
    return f"{evaluation.n_trainings} ({folds} fold{'s' * (folds > 1)} × {seeds} seed{'s' * (seeds > 1)})"
