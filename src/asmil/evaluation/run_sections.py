"""Blocks of HTML that the report of a run of any task has: a metric with its interval, the learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from pathlib import Path

from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.figures import learning_figure, stage_starts
from asmil.evaluation.page_parts import image
from asmil.evaluation.run import Training, read_training
from asmil.evaluation.tables import format_interval, format_number


def metric_cell(
    value: float, interval: Interval, note: str = "", scale: tuple[float, float] | None = (0.0, 1.0)
) -> str:
    """A value with its interval, as text and as a bar on the given scale (None: no bar); the note stands below."""
    bar = "" if scale is None else _interval_bar(value, interval, scale)
    below = f"<small>{escape(note)}</small>" if note else ""
    return f"<b>{format_number(value)}</b>{bar}<small>{format_interval(interval)}</small>{below}"


def learning_section(run: Path, trainings: Iterable[tuple[int, int]]) -> str:
    """The learning curves of the trainings (fold, seed) of a run, with a heading."""
    found: list[Training] = []
    problems: list[str] = []
    for fold, seed in trainings:
        try:
            training = read_training(run, fold, seed)
        except AsmilError as error:
            problems.append(str(error))
        else:
            found += [] if training is None else [training]
    notes = "".join(f'<p class="note">{escape(problem)}</p>' for problem in problems)
    figure = learning_figure(found) if found else None
    if figure is None:
        return f'<h3>Learning curves</h3>{notes}<p class="note">The course of the trainings was not recorded.</p>'
    caption = "The dashed line marks the epoch that was kept."
    if len(found) > 1:
        caption = "Thin lines are single trainings, thick ones their mean. Rings mark the epochs that were kept."
    if stage_starts(found[0]):
        caption += " At the dotted line a new stage of the training begins, with a model of its own."
    return f"<h3>Learning curves</h3>{notes}<p>{caption}</p>{image(figure, 'Learning curves')}"


def _interval_bar(value: float, interval: Interval, scale: tuple[float, float]) -> str:
    if math.isnan(value) or math.isnan(interval.low):
        return ""
    low, high, middle = (100 * min(1.0, max(0.0, (x - scale[0]) / (scale[1] - scale[0]))) for x in (*interval, value))
    return (
        f'<svg class="bar" viewBox="0 0 100 8" role="img" aria-label="interval on a scale from {scale[0]:g} to '
        f'{scale[1]:g}"><rect x="0" y="3" width="100" height="2" class="scale"/>'
        f'<rect x="{low:.1f}" y="1" width="{max(0.8, high - low):.1f}" height="6" class="range"/>'
        f'<rect x="{middle - 0.6:.1f}" y="0" width="1.2" height="8" class="value"/></svg>'
    )
