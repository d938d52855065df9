"""Evaluations as tables of the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from asmil.evaluation.run_sentences import part_title
from asmil.evaluation.summary import CLASS_METRICS, METRIC_TITLES, METRICS, Evaluation, MetricSummary
from asmil.evaluation.tables import format_interval, format_number, format_sizes

CLASS_COLUMNS = CLASS_METRICS[:-1]
"""What fits into a terminal; the average precision stands in the report."""


def summary_table(evaluations: Sequence[Evaluation]) -> Table:
    """A row a run: every metric with its spread over seeds and its interval."""

    title = part_title(evaluations[0].role, (evaluation.run.config for evaluation in evaluations))
    part = f"{title}: {format_sizes(evaluations)}"
    spread = " ± standard deviation" if any(evaluation.n_seeds > 1 for evaluation in evaluations) else ""
    title = f"{part}; mean{spread} over seeds, 95 % interval by patient"
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for name in METRICS:
        table.add_column(METRIC_TITLES[name].replace(" ", "\n"), justify="right", no_wrap=True)
    for evaluation in evaluations:
        values = [
            f"{_with_spread(metric)}\n[dim]{format_interval(metric.interval, '–')}[/dim]"
            for metric in (evaluation.metrics[name] for name in METRICS)
        ]
        trainings = f"{evaluation.n_trainings} training{'s' * (evaluation.n_trainings > 1)}"
        about = f"{escape(evaluation.name)}\n[dim]{escape(evaluation.method)}, {trainings}[/dim]"
        table.add_row(about, *values)
    return table


def _with_spread(metric: MetricSummary) -> str:

    value = format_number(metric.value)
    return value if math.isnan(metric.sd_seeds) else f"{value} ±{format_number(metric.sd_seeds)}"


def class_table(evaluation: Evaluation) -> Table:
    """A row a class, against the rest."""

    table = Table(title="every class against the rest", box=SIMPLE_HEAD)
    table.add_column("class", overflow="fold")
    for name in CLASS_COLUMNS:
        table.add_column(METRIC_TITLES[name], justify="right", no_wrap=True)
    for one in evaluation.classes:
        values = [
            f"{format_number(value)}\n[dim]{format_interval(interval, '–')}[/dim]"
            for value, interval in (one.metrics[name] for name in CLASS_COLUMNS)
        ]
        table.add_row(f"{escape(one.name)}\n[dim]n = {one.support}[/dim]", *values)
    return table
