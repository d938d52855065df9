"""What the report of a survival run says beside its metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asmil.evaluation.survival.evaluate import SurvivalEvaluation
from asmil.evaluation.survival.figures import auc_figure, brier_figure, kaplan_meier_figure
from asmil.reporting import Block, Cell, Figure, Heading, Row, SideBySide, Table, estimate_cell
from asmil.reporting.formats import format_months, format_p


def survival_blocks(evaluation: SurvivalEvaluation) -> list[Block]:
    """Risk groups, single times and curves of one run."""
    return [
        Heading("Risk groups"),
        _risk_groups(evaluation),
        Figure(kaplan_meier_figure(evaluation.risk_groups), "Kaplan-Meier curves by risk group"),
        Heading("At single times"),
        _times(evaluation),
        SideBySide(
            [
                Figure(auc_figure(evaluation), "AUC over time"),
                Figure(brier_figure(evaluation), "Brier score over time"),
            ]
        ),
    ]


def _risk_groups(evaluation: SurvivalEvaluation) -> Table:
    found = evaluation.risk_groups
    rows: list[Row] = [
        [
            group.name,
            str(group.patients),
            str(group.events),
            Cell(format_months(group.median), interval=format_months(*group.median_interval)),
        ]
        for group in found.groups
    ]
    p = "undefined" if math.isnan(found.p) else f"p {'' if found.p < 0.001 else '= '}{format_p(found.p)}"
    caption = (
        f"Cut at the {found.cut} of the predicted risks within each fold, groups of all folds joined. "
        f"Log-rank test: {p}. Bands and intervals: 95 %; ticks: censored patients."
    )
    columns = ["group", "patients", "events", "median survival, months"]
    return Table(columns, rows, title=f"risk groups, log-rank test: {p}", caption=caption, in_terminal=True)


def _times(evaluation: SurvivalEvaluation) -> Table:
    rows: list[Row] = [
        [f"{t:.1f} months", estimate_cell(auc), estimate_cell(evaluation.brier_at[t])]
        for t, auc in evaluation.auc_at.items()
    ]
    low, high = evaluation.window
    over = "" if math.isnan(low) else f" The curves and their means run from {low:.1f} to {high:.1f} months."
    caption = f"Mean over folds and seeds, 95 % interval by patient.{over}"
    return Table(["time", "AUC(t)", "Brier score"], rows, caption=caption)


def survival_reading(evaluations: Sequence[SurvivalEvaluation]) -> list[str]:
    """How to read the numbers."""
    sentences = [
        "One sample is one patient. Risks of different trainings have no common scale, so the C-index and AUC(t) are "
        "never taken over two folds at once: each training is evaluated on the test patients of its own fold. "
        "Values are means over folds and seeds.",
        "Intervals are 95 % percentile intervals of a bootstrap over patients of that mean. They show how much the "
        "choice of patients matters, the standard deviation over folds how much the folds differ. Trainings of several "
        "folds share training patients, so neither is an interval for a new training.",
        "C-index: a pair counts if the one with the earlier time has the event (at equal times: if the other is "
        "censored); equal risks count 1/2, so 0.5 is chance. The strict form leaves out equal times and counts equal "
        "risks 0.",
        "AUC(t): who has the event by t against who is followed longer than t, ranked by the same risk at every t. "
        "The Brier score is the squared error of the predicted survival at t: lower is better. Kaplan-Meier, which "
        "gives every patient the same curve, is the reference. Both weight patients by the inverse probability "
        "of being followed, estimated by Kaplan-Meier on all evaluated patients; this assumes that censoring does "
        "not depend on the risk.",
        "The Kaplan-Meier reference was fitted on the evaluated patients themselves, so it is harder to beat than one "
        "fitted on the training part. Between the ends of time bins predicted curves are straight lines.",
        "Risk groups: the cut lies at the "
        + " or ".join(dict.fromkeys(evaluation.risk_groups.cut for evaluation in evaluations))
        + " of the predicted risks among the patients of a fold (ranks, averaged over seeds), and the groups of all "
        "folds are joined. No outcome was used for the cut, but it needs a whole group of patients: a single new "
        "patient needs a cut fixed beforehand. The log-rank test ignores that folds share training "
        "patients; with cross-validation its p-value is somewhat too small.",
    ]
    if len(evaluations) > 1:
        sentences.append(
            "Overlapping intervals of two runs do not test their difference: both were measured on the same patients."
        )
    return sentences
