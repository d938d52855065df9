"""The metrics of new patients beside the internal estimate, and whether the model is not inferior to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from asmil.evaluation.curves import KINDS, run_curves
from asmil.evaluation.slide_evaluation import few_per_class
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Cell, Estimate, Figure, Interval, Row, Section, SideBySide, Table, estimate_cell
from asmil.reporting.formats import format_interval_of, format_number, format_signed, format_signed_interval
from asmil.tasks.base import Metric
from asmil.tasks.intervals import difference_interval

LEVEL, POWER = float(ndtri(0.975)), float(ndtri(0.8))
BAND_DRAWS = 300
RANKS, CHANCE = ("macro_auc", "c_index"), 0.5
"""Metrics of ranking, and their value for a model that knows nothing."""


@dataclass(frozen=True)
class NonInferiority:
    """Whether a metric of new patients is at most a margin worse than the internal estimate.

    difference: new minus internal; shown: whether its 95 % interval excludes a loss of the margin
    needed: new patients that would show it with a probability of 80 % if both are equal; None: no number is enough
    """

    metric: str
    margin: float
    difference: Estimate
    shown: bool
    needed: int | None


def performance(validated: ValidatedPredictions) -> Part:
    """Every metric of the task with its interval, beside the internal estimate and with their difference."""
    internal, metrics = validated.internal, validated.measured.metrics
    rows: list[Row] = []
    content: dict[str, Any] = {"internal_of": None if internal is None else internal.of, "metrics": {}}
    for metric in _ordered(validated):
        new = metrics[metric.name]
        own = None if internal is None else internal.metrics.get(metric.name)
        difference = None if own is None else _difference(new, own)
        rows.append(
            [
                validated.title_of(metric),
                estimate_cell(new, scale=metric.scale),
                "–" if own is None else estimate_cell(own, scale=metric.scale),
                "–" if difference is None else _signed(difference),
            ]
        )
        content["metrics"][metric.name] = {
            "title": validated.title_of(metric),
            "larger_is_better": metric.larger_is_better,
            **new.to_dict("skipped"),
            "internal": None if own is None else own.to_dict(),
            "difference": None if difference is None else difference.to_dict(),
        }
    caption = "Value with its 95 % interval by patient."
    if validated.run.operating_point is not None:
        caption += (
            " F1 and accuracies are those of the most probable class; those at the threshold are in the next part."
        )
    if internal is not None:
        caption += (
            f" Internal: the run's own test patients ({internal.of}), predicted by the models of their fold; new "
            "patients are predicted by the mean of all models. The interval of the difference treats both groups of "
            "patients as independent."
        )
    table = Table(
        ["metric", "new patients", "internal estimate", "new minus internal"],
        rows,
        title="new patients and internal estimate",
        caption=caption,
        in_terminal=True,
        emphasis=True,
    )
    blocks: list[Block] = [table]
    verdict = non_inferiority(validated)
    if verdict is not None:
        content["non_inferiority"] = {**vars(verdict), "difference": verdict.difference.to_dict(), "power": 0.8}
        blocks.append(_in_words(verdict, validated))
    blocks += _curves(validated)
    return Part(
        "performance",
        Section("Performance", blocks),
        content,
        _sentence(validated),
        tuple(_warnings(validated)),
    )


def _ordered(validated: ValidatedPredictions) -> list[Metric]:
    """The metrics, the main one first."""
    main = validated.main_metric
    return [main, *(metric for metric in validated.run.format.metrics if metric != main)]


def _difference(new: Estimate, own: Estimate) -> Estimate:
    interval = difference_interval(new, own)
    return Estimate(new.value - own.value, interval, how="both intervals (Zou and Donner 2008)")


def _signed(difference: Estimate) -> Cell:
    interval = format_signed_interval(difference.interval)
    return Cell(format_signed(difference.value), interval=interval, strong=difference.interval.excludes_zero)


def _sentence(validated: ValidatedPredictions) -> str:
    metric = validated.main_metric
    new, title = validated.measured.metrics[metric.name], validated.title_of(metric)
    said = f"{title} {format_number(new.value)} (95 % interval {format_interval_of(new)})"
    if math.isnan(new.value):
        said = f"{title} cannot be computed on these patients"
    if metric.name in RANKS and new.interval.low <= CHANCE <= new.interval.high:
        said += f", not clearly different from chance ({CHANCE:g})"
    internal = validated.internal
    if internal is None or metric.name not in internal.metrics:
        return f"{said}; the run has no estimate of its own by patient to compare it with."
    own = internal.metrics[metric.name]
    return f"{said}; on its own test patients it was {format_number(own.value)} ({format_interval_of(own)})."


def non_inferiority(validated: ValidatedPredictions) -> NonInferiority | None:
    """The test of the main metric with the margin of the request; None without margin or internal estimate."""
    margin, internal, metric = validated.request.margin, validated.internal, validated.main_metric
    if margin is None or internal is None or metric.name not in internal.metrics:
        return None
    new, own = validated.measured.metrics[metric.name], internal.metrics[metric.name]
    difference = _difference(new, own)
    worst = difference.interval.low if metric.larger_is_better else -difference.interval.high
    room = (margin / (LEVEL + POWER)) ** 2 - standard_error(own.interval) ** 2
    needed = None
    if room > 0 and new.interval.is_defined:
        needed = math.ceil(validated.n_patients * standard_error(new.interval) ** 2 / room)
    return NonInferiority(metric.name, margin, difference, bool(worst > -margin), needed)


def standard_error(interval: Interval) -> float:
    """The standard error that a 95 % interval stands for."""
    return (interval.high - interval.low) / (2 * LEVEL)


def _in_words(verdict: NonInferiority, validated: ValidatedPredictions) -> str:
    title = validated.title_of(validated.main_metric)
    shown = "Non-inferiority was shown" if verdict.shown else "Non-inferiority was not shown"
    planned = (
        "No number of new patients gives a new study a chance of 80 % to show it, since the internal estimate itself "
        "is too uncertain for this margin."
    )
    if verdict.needed is not None:
        planned = (
            f"A study with a chance of 80 % to show it, if the model is as good as before, needs about "
            f"{verdict.needed} patients like these ({validated.n_patients} were validated)."
        )
    interval = format_signed_interval(verdict.difference.interval)
    excludes = "excludes" if verdict.shown else "does not exclude"
    return (
        f"{shown}: the 95 % interval of the difference in {title} ({interval}) {excludes} a loss of "
        f"{verdict.margin:g}, the margin. {planned}"
    )


def _curves(validated: ValidatedPredictions) -> list[Block]:
    """ROC and precision-recall curves with bootstrap bands."""
    task = validated.run.format
    if not task.are_probabilities:
        return []
    names = {validated.run.name: validated.predictions[None]}
    present, known = task.memberships(validated.truth), task.known(validated.truth)
    labels, weights = validated.classes_shown, validated.draws[:BAND_DRAWS].astype(np.float64)
    figures = [Figure(run_curves(kind, present, known, names, weights, labels), kind.title) for kind in KINDS]
    mean = f" Each curve is the mean over the {task.part_name} curves." * (len(labels) > 1)
    caption = f"New patients. Bands: 95 % of bootstrap resamples of patients.{mean}"
    return [SideBySide(figures), caption] if any(figure.content for figure in figures) else []


def _warnings(validated: ValidatedPredictions) -> list[str]:
    task = validated.run.format
    warnings = _worse(validated)
    warnings += few_per_class(task, validated.truth, validated.patients["patient"].tolist())
    if validated.request.margin is not None and non_inferiority(validated) is None:
        warnings.append("Non-inferiority was not tested: the run has no internal estimate of this metric.")
    if validated.run.kind == "survival":
        warnings += validated.survival.warnings
    return warnings


def _worse(validated: ValidatedPredictions) -> list[str]:
    """A sentence if the main metric is clearly worse than the internal estimate."""
    metric, internal = validated.main_metric, validated.internal
    if internal is None or metric.name not in internal.metrics:
        return []
    difference = _difference(validated.measured.metrics[metric.name], internal.metrics[metric.name])
    if not difference.interval.excludes_zero or (difference.value > 0) == metric.larger_is_better:
        return []
    change = f"{format_signed(difference.value)}, {format_signed_interval(difference.interval)}"
    return [f"{validated.title_of(metric)} is worse on new patients than the internal estimate ({change})."]
