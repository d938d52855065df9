"""Calibration of class probabilities on new patients: in the large, slope, curve with a band, Brier score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from asmil.evaluation.statistics.logistic import calibration_curves, calibration_intercepts, calibration_slopes
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Estimate, Figure, Row, Section, SideBySide, Table, estimate_cell
from asmil.reporting.drawing import COLORS, GUIDE, ONE_COLUMN, new_figure, plain_text, svg_text
from asmil.tables.arrays import Floats
from asmil.tasks.intervals import proportion_interval, under_draws
from asmil.tasks.weighted import weighted_mean

CURVE_DRAWS = 500
GRID = 61
GROUPS, FEWEST_IN_GROUP = 10, 10
FEWEST_FOR_CURVE = 10
"""With fewer patients of a class, or of the others, no curve is drawn."""
ENOUGH = 100
"""With fewer, calibration is imprecise (Van Calster et al. 2016; Collins 2016)."""
NUMBERS = {
    "predicted": "mean prediction",
    "observed": "observed share",
    "intercept": "intercept",
    "slope": "slope",
    "brier": "Brier score",
}


@dataclass(frozen=True)
class Curve:
    """The observed share of a class over its predicted probability with a 95 % band, and groups of patients.

    groups: mean prediction, observed share with its exact interval, and patients
    """

    at: Floats
    observed: Floats
    low: Floats
    high: Floats
    groups: tuple[tuple[float, Estimate], ...]


def calibration(validated: ValidatedPredictions) -> Part | None:
    """How well probabilities agree with observed shares; None for tasks without classes."""
    if validated.run.kind != "classification":
        return None
    rows: list[Row] = []
    content, figures, sentences, few = dict[str, Any](), [], [], []
    for k in validated.classes_shown:
        name = validated.run.classes[k]
        outcome = (validated.truth == k).astype(np.float64)
        probabilities = validated.predictions[:, k]
        numbers = class_numbers(validated, outcome, probabilities)
        rows.append([name, *(estimate_cell(numbers[key]) for key in NUMBERS)])
        fewest = int(min(outcome.sum(), (1 - outcome).sum()))
        curve = class_curve(validated, outcome, probabilities) if fewest >= FEWEST_FOR_CURVE else None
        few += [f"{fewest} {name if fewest == outcome.sum() else f'not {name}'}"] * (fewest < ENOUGH)
        figures += [] if curve is None else [Figure(_draw(name, curve, probabilities), f"Calibration: {name}")]
        sentences.append(_in_words(name, numbers))
        content[name] = {
            **{key: number.to_dict("skipped") for key, number in numbers.items()},
            "curve": None if curve is None else _plain(curve),
        }
    caption = (
        "Intercept: calibration in the large; 0 if the mean prediction is right, below 0 if predictions are too high. "
        "Slope: 1 is right, below 1 means that predictions are too extreme. Brier score: mean squared error of the "
        "probability of the class; 0 is perfect. With 95 % intervals by patient."
    )
    imprecise = f" Imprecise, since one side has fewer than {ENOUGH} patients: {', '.join(few)}." if few else ""
    blocks: list[Block] = [
        " ".join(sentences) + imprecise,
        Table(["class", *NUMBERS.values()], rows, caption=caption),
    ]
    if figures:
        blocks += [
            SideBySide(figures),
            "Line: logistic regression of the outcome on a spline of the logit, with a 95 % bootstrap band. Dots: "
            "groups of patients with similar predictions, with exact 95 % intervals. Bars: patients by prediction.",
        ]
    return Part("calibration", Section("Calibration", blocks), content, sentences[0] * (len(sentences) == 1))


def class_numbers(validated: ValidatedPredictions, outcome: Floats, probabilities: Floats) -> dict[str, Estimate]:
    """Every number of the table with its bootstrap interval."""

    def measure(weights: Floats) -> Mapping[str, Floats]:
        return {
            "predicted": weighted_mean(probabilities, weights),
            "observed": weighted_mean(outcome, weights),
            "intercept": calibration_intercepts(outcome, probabilities, weights),
            "slope": calibration_slopes(outcome, probabilities, weights),
            "brier": weighted_mean((outcome - probabilities) ** 2, weights),
        }

    return validated.estimated(measure)


def class_curve(validated: ValidatedPredictions, outcome: Floats, probabilities: Floats) -> Curve:
    """The curve between the smallest and the largest prediction."""
    at = np.linspace(probabilities.min(), probabilities.max(), GRID)

    def measure(weights: Floats) -> Mapping[str, Floats]:
        return {"curve": calibration_curves(outcome, probabilities, weights, at)}

    observed = measure(np.ones((1, len(outcome))))["curve"][0]
    drawn = under_draws(measure, validated.draws[:CURVE_DRAWS], 4 * len(outcome))["curve"]
    drawn = drawn[~np.isnan(drawn).any(axis=1)]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0) if len(drawn) else np.full((2, GRID), np.nan)
    order = np.argsort(probabilities, kind="stable")
    n_groups = max(1, min(GROUPS, len(order) // FEWEST_IN_GROUP))
    groups = []
    for members in np.array_split(order, n_groups):
        count = int(outcome[members].sum())
        share = Estimate(count / len(members), proportion_interval(count, len(members)), n=len(members), how="exact")
        groups.append((float(probabilities[members].mean()), share))
    return Curve(at, observed, low, high, tuple(groups))


def _in_words(name: str, numbers: Mapping[str, Estimate]) -> str:
    intercept, slope = numbers["intercept"].interval, numbers["slope"].interval
    predicted, observed = (100 * numbers[key].value for key in ("predicted", "observed"))
    shares = f"({predicted:.0f} % predicted, {observed:.0f} % observed)"
    if not intercept.is_defined:
        return f"Calibration of {name} cannot be computed on these patients {shares}."
    mean = "neither clearly too high nor too low on average"
    if intercept.excludes_zero:
        mean = "too high on average" if intercept.high < 0 else "too low on average"
    spread = ""
    if slope.is_defined and not slope.low <= 1 <= slope.high:
        spread = " and too extreme" if slope.high < 1 else " and not extreme enough"
    return f"Predictions of {name} are {mean} {shares}{spread}."


def _plain(curve: Curve) -> dict[str, Any]:
    return {
        "predicted": curve.at,
        "observed": curve.observed,
        "low": curve.low,
        "high": curve.high,
        "groups": [{"predicted": mean, "patients": share.n, **share.to_dict()} for mean, share in curve.groups],
    }


def _draw(name: str, curve: Curve, probabilities: Floats) -> str:
    with new_figure(ONE_COLUMN, 4.6) as figure:
        axes, below = figure.subplots(2, 1, height_ratios=[4, 1], sharex=True)
        axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle="--", label="perfect")
        axes.fill_between(curve.at, curve.low, curve.high, color=COLORS[0], alpha=0.15, linewidth=0)
        axes.plot(curve.at, curve.observed, color=COLORS[0], linewidth=1.8, label="new patients")
        for mean, share in curve.groups:
            axes.plot([mean, mean], list(share.interval), color=COLORS[1], linewidth=1)
            axes.plot(mean, share.value, "o", color=COLORS[1], markersize=4)
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), title=f"Calibration: {plain_text(name)}", ylabel="observed share")
        axes.legend(loc="upper left")
        below.hist(probabilities, bins=np.linspace(0, 1, 21), color=COLORS[0], alpha=0.6)
        below.set(xlabel=f"predicted probability of {plain_text(name)}", ylabel="patients")
        return svg_text(figure)
