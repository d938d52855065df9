"""The findings of evaluations as rows: for CSV, for Markdown and for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.summary import CLASS_METRICS, METRIC_TITLES, METRICS, Evaluation


def format_number(value: float, digits: int = 3) -> str:
    """A number with fixed digits; an undefined one as a dash."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def format_interval(interval: Interval, between: str = " to ") -> str:
    """Both ends of an interval; an undefined one as a dash."""
    if math.isnan(interval.low):
        return "–"
    return f"{format_number(interval.low)}{between}{format_number(interval.high)}"


def format_trainings(evaluation: Evaluation) -> str:
    """How many trainings stand behind a number, and of what kind."""
    folds, seeds = evaluation.n_folds, evaluation.n_seeds
    parts = f"{folds} fold{'s' * (folds > 1)} × {seeds} seed{'s' * (seeds > 1)}"
    return f"{evaluation.n_trainings} ({parts})"


def format_sizes(evaluations: Iterable[Evaluation]) -> str:
    """How many slides and patients were judged; several answers where the runs differ."""
    sizes = dict.fromkeys(
        f"{evaluation.n_patients} patients, each by the mean of its slides"
        if evaluation.unit == "patient"
        else f"{evaluation.n_slides} slides of {evaluation.n_patients} patients"
        for evaluation in evaluations
    )
    return " or ".join(sizes)


def metrics_frame(evaluations: Iterable[Evaluation]) -> pd.DataFrame:
    """One row a run and metric, those of single classes included; undefined numbers are empty."""
    rows = []
    for evaluation in evaluations:
        shared = {
            "run": evaluation.name,
            "method": evaluation.method,
            "preset": evaluation.preset,
            "role": evaluation.role,
        }
        counts = {
            "trainings": evaluation.n_trainings,
            "seeds": evaluation.n_seeds,
            "patients": evaluation.n_patients,
            "resamples": evaluation.resamples,
            "skipped_resamples": evaluation.skipped_resamples,
        }
        for name, metric in evaluation.metrics.items():
            values = {"value": metric.value, "low": metric.interval.low, "high": metric.interval.high}
            spread = {"sd_seeds": metric.sd_seeds, "sd_trainings": metric.sd_trainings}
            slides = {"slides": evaluation.n_slides}
            rows.append({**shared, "metric": name, "class": "", **values, **spread, **slides, **counts})
        for row in evaluation.classes:
            for name, (value, interval) in row.metrics.items():
                values = {"value": value, "low": interval.low, "high": interval.high}
                spread = {"sd_seeds": math.nan, "sd_trainings": math.nan}
                slides = {"slides": row.support}
                rows.append({**shared, "metric": name, "class": row.name, **values, **spread, **slides, **counts})
    return pd.DataFrame(rows)


def markdown_report(evaluations: Sequence[Evaluation], caveats: Sequence[str]) -> str:
    """The tables and caveats as Markdown."""
    parts = ["# Evaluation", "", _markdown_summary(evaluations), ""]
    for evaluation in evaluations:
        parts += [f"## {markdown_cell(evaluation.name)}", "", _markdown_classes(evaluation), ""]
        parts += ["Confusion matrix, summed over all trainings (rows: true, columns: predicted):", ""]
        parts += [_markdown_confusion(evaluation), ""]
    parts += ["## How to read these numbers", "", *[f"- {markdown_cell(caveat)}" for caveat in caveats]]
    return "\n".join(parts) + "\n"


def _markdown_summary(evaluations: Sequence[Evaluation]) -> str:
    header = ["run", "method", "preset", "part", *(METRIC_TITLES[name] for name in METRICS)]
    header += ["trainings", "slides", "patients"]
    rows = []
    for evaluation in evaluations:
        values = []
        for name in METRICS:
            metric = evaluation.metrics[name]
            text = f"{format_number(metric.value)} ({format_interval(metric.interval)})"
            spread = "" if math.isnan(metric.sd_seeds) else f", sd {format_number(metric.sd_seeds)}"
            values.append(text + spread)
        names = [evaluation.name, evaluation.method, evaluation.preset, evaluation.role]
        sizes = [format_trainings(evaluation), str(evaluation.n_slides), str(evaluation.n_patients)]
        rows.append([*names, *values, *sizes])
    return markdown_table(header, rows)


def _markdown_classes(evaluation: Evaluation) -> str:
    header = ["class", *(METRIC_TITLES[name] for name in CLASS_METRICS), "slides"]
    rows = [
        [
            row.name,
            *(
                f"{format_number(value)} ({format_interval(interval)})"
                for value, interval in (row.metrics[name] for name in CLASS_METRICS)
            ),
            str(row.support),
        ]
        for row in evaluation.classes
    ]
    return markdown_table(header, rows)


def _markdown_confusion(evaluation: Evaluation) -> str:
    names = list(evaluation.run.classes)
    rows = [[name, *map(str, counts)] for name, counts in zip(names, evaluation.confusion, strict=True)]
    return markdown_table(["", *names], rows)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells, which are escaped."""
    lines = ["| " + " | ".join(map(markdown_cell, header)) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(map(markdown_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def markdown_cell(text: str) -> str:
    """Text that can neither end a table cell nor start HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("|", "\\|").replace("\n", " ")
