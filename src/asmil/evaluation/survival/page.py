"""The page of a survival report: one HTML file that needs nothing else; all names and settings are escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from asmil.evaluation.page_parts import caveat_section, html_table, image, settings_block, tag, whole_page
from asmil.evaluation.run_sections import learning_section, metric_cell
from asmil.evaluation.survival.caveats import survival_caveats
from asmil.evaluation.survival.figures import auc_figure, brier_figure, kaplan_meier_figure
from asmil.evaluation.survival.summary import METRIC_TITLES, METRICS, FoldMetric, SurvivalEvaluation
from asmil.evaluation.survival.words import (
    format_months,
    format_p,
    format_sizes,
    format_trainings,
)
from asmil.evaluation.tables import format_interval, format_number

PART_TITLES = {"test": "test part", "val": "validation part"}
SCALES = dict.fromkeys(METRICS, (0.0, 1.0)) | {"integrated_brier": (0.0, 0.3), "reference_brier": (0.0, 0.3)}


def render_survival_page(evaluations: Sequence[SurvivalEvaluation]) -> str:
    """The whole page as text."""
    names = ", ".join(dict.fromkeys(evaluation.name for evaluation in evaluations))
    caveats = caveat_section(survival_caveats(evaluations))
    blocks = [_header(evaluations), _summary(evaluations), *map(_run, evaluations), caveats]
    return whole_page(f"Survival: {names}", blocks)


def _header(evaluations: Sequence[SurvivalEvaluation]) -> str:
    title = evaluations[0].name if len(evaluations) == 1 else f"{len(evaluations)} runs compared"
    parts = " and ".join(dict.fromkeys(PART_TITLES[evaluation.role] for evaluation in evaluations))
    about = f"On the {parts}: {format_sizes(evaluations)}."
    return f"<header><p>Evaluation of survival</p><h1>{escape(title)}</h1><p>{about}</p></header>"


def _summary(evaluations: Sequence[SurvivalEvaluation]) -> str:
    rows = []
    for evaluation in evaluations:
        about = f"{evaluation.method}, preset {evaluation.preset}, {PART_TITLES[evaluation.role]}"
        cells = [tag("th", f"{escape(evaluation.name)}<small>{escape(about)}</small>", scope="row")]
        for name in METRICS:
            metric = evaluation.metrics[name]
            cells.append(tag("td", metric_cell(metric.value, metric.interval, _spread_note(metric), SCALES[name])))
        cells.append(tag("td", escape(format_trainings(evaluation))))
        rows.append("".join(cells))
    note = (
        "Mean over folds and seeds, 95 % interval by patient, and the standard deviation over folds. C-index and "
        "AUC: 0.5 is chance, higher is better. Brier score: lower is better, that of Kaplan-Meier is the scale."
    )
    table = html_table(["run", *(METRIC_TITLES[name] for name in METRICS), "trainings"], rows, css="summary")
    return f"<section><h2>Results</h2><p>{note}</p>{table}</section>"


def _spread_note(metric: FoldMetric) -> str:
    if not math.isnan(metric.sd_folds):
        return f"sd {format_number(metric.sd_folds)}"
    return "" if math.isnan(metric.sd_seeds) else f"sd {format_number(metric.sd_seeds)} (seeds)"


def _run(evaluation: SurvivalEvaluation) -> str:
    curves = image(auc_figure(evaluation), "AUC over time") + image(brier_figure(evaluation), "Brier score over time")
    blocks = [
        f"<h2>{escape(evaluation.name)}</h2>",
        _risk_groups(evaluation),
        _times(evaluation),
        f'<div class="side">{curves}</div>',
        learning_section(evaluation.run.path, evaluation.metrics["c_index"].per_training),
        _trainings(evaluation),
        settings_block(evaluation.run.config),
    ]
    return f"<section>{''.join(blocks)}</section>"


def _risk_groups(evaluation: SurvivalEvaluation) -> str:
    found = evaluation.risk_groups
    rows = [
        tag("th", escape(group.name), scope="row")
        + tag("td", str(group.patients))
        + tag("td", str(group.events))
        + tag("td", f"{format_months(group.median)}<small>{format_months(*group.median_interval)}</small>")
        for group in found.groups
    ]
    table = html_table(["group", "patients", "events", "median survival, months"], rows)
    note = (
        f"Cut at the {found.cut} of the predicted risks within each fold, groups of all folds joined. "
        f"Log-rank test: {format_p(found.p)}. Bands and intervals: 95 %; ticks: censored patients."
    )
    figure = image(kaplan_meier_figure(found), "Kaplan-Meier curves by risk group")
    return f"<h3>Risk groups</h3><p>{note}</p>{table}{figure}"


def _times(evaluation: SurvivalEvaluation) -> str:
    rows = [
        tag("th", f"{t:.1f} months", scope="row") + _plain_cell(auc) + _plain_cell(evaluation.brier_at[t])
        for t, auc in evaluation.auc_at.items()
    ]
    table = html_table(["time", "AUC(t)", "Brier score"], rows)
    low, high = evaluation.window
    over = "" if math.isnan(low) else f" The curves and their means run from {low:.1f} to {high:.1f} months."
    note = f"Mean over folds and seeds, 95 % interval by patient.{over}"
    return f"<h3>At single times</h3><p>{note}</p>{table}"


def _plain_cell(metric: FoldMetric) -> str:
    return tag("td", f"{format_number(metric.value)}<small>{format_interval(metric.interval)}</small>")


def _trainings(evaluation: SurvivalEvaluation) -> str:
    keys = list(evaluation.metrics["c_index"].per_training)
    rows = [
        tag("th", f"fold {fold}, seed {seed}", scope="row")
        + "".join(tag("td", format_number(evaluation.metrics[name].per_training[fold, seed])) for name in METRICS)
        for fold, seed in keys
    ]
    spreads = {"standard deviation over folds": "sd_folds", "standard deviation over seeds": "sd_seeds"}
    for title, attribute in spreads.items():
        values = [getattr(evaluation.metrics[name], attribute) for name in METRICS]
        if not all(map(math.isnan, values)):
            rows.append(tag("th", title, scope="row") + "".join(tag("td", format_number(value)) for value in values))
    table = html_table(["training", *(METRIC_TITLES[name] for name in METRICS)], rows)
    return f"<details><summary>Every training ({len(keys)})</summary>{table}</details>"
