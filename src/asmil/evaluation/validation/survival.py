"""Survival of new patients: risk groups, and calibration of the predicted survival at single times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from asmil.evaluation.survival.report import survival_blocks
from asmil.evaluation.validation.validated import Part, ValidatedPredictions
from asmil.reporting import Block, Cell, Estimate, Figure, Folded, Interval, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, sections_of
from asmil.reporting.drawing import COLORS, GUIDE, new_figure, svg_text
from asmil.reporting.formats import format_signed, format_signed_interval
from asmil.tables.arrays import Floats
from asmil.tasks.intervals import under_draws
from asmil.tasks.survival_metrics import survival_curves
from asmil.tasks.weighted import weighted_mean

GROUPS, FEWEST_IN_GROUP = 5, 20
DRAWS = 500
Group = tuple[float, Estimate]


def survival_calibration(validated: ValidatedPredictions) -> Part | None:
    """Predicted survival against Kaplan-Meier at single times; None without predicted curves."""
    if validated.run.kind != "survival" or not validated.survival_at:
        return None
    unit = validated.run.time_unit
    rows: list[Row] = []
    content: list[dict[str, Any]] = []
    figures, sentences = [], []
    for t, survival in validated.survival_at.items():
        numbers = _numbers(validated, survival, t)
        groups = _groups(validated, survival, t)
        difference = numbers["difference"]
        signed = Cell(format_signed(difference.value), interval=format_signed_interval(difference.interval))
        rows.append([f"{t:.3g} {unit}", *(estimate_cell(numbers[key]) for key in ("predicted", "observed")), signed])
        content.append(
            {
                "time": t,
                **{key: number.to_dict("skipped") for key, number in numbers.items()},
                "groups": [{"predicted": mean, "patients": share.n, **share.to_dict()} for mean, share in groups],
            }
        )
        title = f"Calibration at {t:.3g} {unit}"
        figures.append(Figure(_draw(title, groups), title))
        if difference.interval.excludes_zero:
            wrong = "high" if difference.value > 0 else "low"
            sentences.append(f"Predicted survival at {t:.3g} {unit} is too {wrong} on average.")
    caption = (
        "Predicted: mean over patients; observed: Kaplan-Meier; a difference above 0 means that survival is predicted "
        "too high. With 95 % intervals by patient."
    )
    columns = ["time", "predicted survival", "observed survival", "predicted minus observed"]
    blocks: list[Block] = [
        " ".join(sentences) or "No difference between mean predicted and observed survival was shown at these times.",
        Table(columns, rows, caption=caption),
        SideBySide(figures),
        "Dots: groups of patients with similar predictions, observed by Kaplan-Meier with 95 % intervals by patient.",
    ]
    stored = {"times": content, "time_unit": unit}
    return Part("calibration", Section("Calibration", blocks), stored, " ".join(sentences))


def risk_groups(validated: ValidatedPredictions) -> Part | None:
    """Kaplan-Meier curves by risk group, and metrics at single times, as in the report of a run."""
    if validated.run.kind != "survival":
        return None
    evaluation = validated.survival
    first, *others = sections_of(survival_blocks(evaluation))
    blocks: list[Block] = [
        "The cut is made on the new patients, to show the separation; do not use it for single patients.",
        *first.blocks,
        *(Folded(section.title, section.blocks) for section in others),
    ]
    stored = evaluation.to_dict()
    content = {name: stored[name] for name in ("events", "time_unit", "auc_at", "brier_at", "window", "risk_groups")}
    return Part("survival", Section("Risk groups", blocks), content)


def _numbers(validated: ValidatedPredictions, survival: Floats, t: float) -> dict[str, Estimate]:
    time, event = validated.truth.T

    def measure(weights: Floats) -> Mapping[str, Floats]:
        predicted, observed = weighted_mean(survival, weights), survival_curves(time, event, weights).at(t)[:, 0]
        return {"predicted": predicted, "observed": observed, "difference": predicted - observed}

    return validated.estimated(measure)


def _groups(validated: ValidatedPredictions, survival: Floats, t: float) -> list[Group]:
    """Patients by predicted survival: the mean prediction and Kaplan-Meier of each group."""
    time, event = validated.truth.T
    order = np.argsort(survival, kind="stable")
    groups = []
    for members in np.array_split(order, max(1, min(GROUPS, len(order) // FEWEST_IN_GROUP))):

        def measure(weights: Floats, members: Any = members) -> Mapping[str, Floats]:
            return {"km": survival_curves(time[members], event[members], weights[:, members]).at(t)[:, 0]}

        value = float(measure(np.ones((1, len(order))))["km"][0])
        low, high = np.percentile(under_draws(measure, validated.draws[:DRAWS], len(order))["km"], [2.5, 97.5])
        share = Estimate(value, Interval(float(low), float(high)), n=len(members))
        groups.append((float(survival[members].mean()), share))
    return groups


def _draw(title: str, groups: list[Group]) -> str:
    with new_figure(4.0, 3.8) as figure:
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle="--")
        for mean, share in groups:
            axes.plot([mean, mean], list(share.interval), color=COLORS[0], linewidth=1.4)
        axes.plot([mean for mean, _ in groups], [share.value for _, share in groups], "o-", color=COLORS[0])
        axes.set(xlim=(0, 1), ylim=(0, 1.02), title=title, xlabel="predicted survival", ylabel="observed survival")
        return svg_text(figure)
