"""Numbers and lists as text for facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asmil.evaluation.checklists.known import at
from asmil.reporting.formats import format_count, format_number


def intervals_of(content: dict[str, Any]) -> str:
    """How the intervals of an evaluation were computed."""
    return f"with 95 % intervals from {at(content, 'bootstrap', 'resamples')} bootstrap resamples of patients."


def number(metric: Any) -> str:
    """The value of a metric with its interval."""
    value, low, high = (at(metric, name) for name in ("value", "low", "high"))
    if value is None:
        return "undefined"
    interval = "" if low is None or high is None else f" ({format_number(low)} to {format_number(high)})"
    return f"{format_number(value)}{interval}"


def numbers(metrics: Mapping[str, Any]) -> str:
    """Several metrics with their names."""
    return ", ".join(f"{name.replace('_', ' ')} {number(metric)}" for name, metric in metrics.items())


def cross_table(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A confusion matrix, one row per true class.

    >>> cross_table(["a", "b"], [[3, 1], [0, 2]])
    'a: 3 called a, 1 called b; b: 0 called a, 2 called b'
    """
    rows = (", ".join(f"{n} called {name}" for n, name in zip(row, classes, strict=False)) for row in counts)
    return "; ".join(f"{true}: {row}" for true, row in zip(classes, rows, strict=False))


def slides_of(slides: int | None, patients: int) -> str:
    """Slides and patients; only patients if the slides are unknown."""
    of = format_count(patients, "patient")
    return of if slides is None else f"{format_count(slides, 'slide')} of {of}"


def span(counts: Sequence[int]) -> str:
    """The lowest and highest of several counts, or the one they share."""
    return f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else f"{counts[0]}"


def joined(parts: Iterable[str]) -> str:
    """Words with commas and an `and`.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    named = list(parts)
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
