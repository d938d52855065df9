"""The page of a report: one HTML file that needs nothing else.

Every text that comes from outside (names of runs, classes, settings) passes `html.escape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from asmil.evaluation.caveats import caveats_of
from asmil.evaluation.figures import roc_figure
from asmil.evaluation.page_parts import caveat_section, html_table, image, settings_block, tag, whole_page
from asmil.evaluation.probability_figures import precision_recall_figure, reliability_figure
from asmil.evaluation.run_sections import learning_section, metric_cell
from asmil.evaluation.summary import CLASS_METRICS, METRIC_TITLES, METRICS, Evaluation, MetricSummary
from asmil.evaluation.tables import format_interval, format_number, format_sizes, format_trainings

PART_TITLES = {"test": "test part", "val": "validation part"}


def render_page(evaluations: Sequence[Evaluation]) -> str:
    """The whole page as text."""
    names = ", ".join(dict.fromkeys(evaluation.name for evaluation in evaluations))
    caveats = caveat_section(caveats_of(evaluations))
    return whole_page(
        f"Evaluation: {names}", [_header(evaluations), _summary(evaluations), *map(_run, evaluations), caveats]
    )


def _header(evaluations: Sequence[Evaluation]) -> str:
    first = evaluations[0]
    title = first.name if len(evaluations) == 1 else f"{len(evaluations)} runs compared"
    parts = " and ".join(dict.fromkeys(PART_TITLES[evaluation.role] for evaluation in evaluations))
    sizes = format_sizes(evaluations)
    return f"<header><p>Evaluation</p><h1>{escape(title)}</h1><p>On the {parts}: {sizes}.</p></header>"


def _summary(evaluations: Sequence[Evaluation]) -> str:
    head = ["run", *(METRIC_TITLES[name] for name in METRICS), "trainings"]
    rows = []
    for evaluation in evaluations:
        about = f"{evaluation.method}, preset {evaluation.preset}, {PART_TITLES[evaluation.role]}"
        cells = [tag("th", f"{escape(evaluation.name)}<small>{escape(about)}</small>", scope="row")]
        cells += [tag("td", _metric(evaluation.metrics[name])) for name in METRICS]
        cells.append(tag("td", escape(format_trainings(evaluation))))
        rows.append("".join(cells))
    note = "Mean over seeds, 95 % interval by patient, and the standard deviation over seeds."
    table = html_table(head, rows, css="summary")
    return f"<section><h2>Results</h2><p>{note}</p>{table}</section>"


def _metric(metric: MetricSummary) -> str:
    spread = "" if math.isnan(metric.sd_seeds) else f"sd {format_number(metric.sd_seeds)}"
    return metric_cell(metric.value, metric.interval, spread)


def _run(evaluation: Evaluation) -> str:
    blocks = [
        f"<h2>{escape(evaluation.name)}</h2>",
        _classes(evaluation),
        _confusion(evaluation),
        f'<div class="side">{image(roc_figure(evaluation), "ROC curves")}'
        f"{image(precision_recall_figure(evaluation), 'Precision-recall curves')}</div>",
        f'<div class="side">{_calibration(evaluation)}{image(reliability_figure(evaluation), "Reliability")}</div>',
        _operating(evaluation),
        learning_section(evaluation.run.path, evaluation.metrics[METRICS[0]].per_training),
        _spread(evaluation),
        settings_block(evaluation.run.config),
    ]
    return f"<section>{''.join(blocks)}</section>"


def _classes(evaluation: Evaluation) -> str:
    head = ["class", *(METRIC_TITLES[name] for name in CLASS_METRICS), "slides"]
    rows = []
    for row in evaluation.classes:
        cells = [tag("th", escape(row.name), scope="row")]
        for name in CLASS_METRICS:
            value, interval = row.metrics[name]
            cells.append(tag("td", f"{format_number(value)}<small>{format_interval(interval)}</small>"))
        cells.append(tag("td", str(row.support)))
        rows.append("".join(cells))
    note = "Every class against the rest: mean over seeds, 95 % interval by patient."
    return f"<h3>Classes</h3><p>{note}</p>{html_table(head, rows)}"


def _confusion(evaluation: Evaluation) -> str:
    names = evaluation.run.classes
    rows = []
    for name, counts in zip(names, evaluation.confusion, strict=True):
        total = max(1, int(counts.sum()))
        cells = [tag("th", escape(name), scope="row")]
        for count in counts:
            share = int(count) / total
            ink = "#fff" if share > 0.55 else "inherit"
            shade = f"background:rgba(37,99,168,{0.9 * share:.2f});color:{ink}"
            cells.append(tag("td", f"{count}<small>{100 * share:.0f} %</small>", style=shade))
        rows.append("".join(cells))
    note = (
        f"Rows: true class; columns: predicted class. Counts are summed over {evaluation.n_trainings} "
        f"training{'s' * (evaluation.n_trainings > 1)}, percentages are of the row."
    )
    table = html_table(["true \\ predicted", *names], rows, css="confusion")
    return f"<div><h3>Confusion matrix</h3><p>{note}</p>{table}</div>"


def _calibration(evaluation: Evaluation) -> str:
    found = evaluation.calibration
    columns = [("as predicted", found.as_predicted)]
    if found.scaled is not None:
        columns.append(("temperature-scaled", found.scaled))
        temperatures = list(found.temperatures.values())
        low, high = (format_number(value, 2) for value in (min(temperatures), max(temperatures)))
        told = low if low == high else f"{low} to {high}"
        note = (
            f"Temperatures ({told}) were fitted on the validation part of each training; they never change the class "
            "that is called."
        )
    else:
        note = "No temperature was fitted: that needs a validation part beside the one shown."
    rows = [
        tag("th", title, scope="row")
        + "".join(tag("td", format_number(getattr(numbers, name))) for _, numbers in columns)
        for title, name in (
            ("expected calibration error", "ece"),
            ("negative log-likelihood", "nll"),
            ("Brier score", "brier"),
        )
    ]
    table = html_table(["", *(title for title, _ in columns)], rows)
    return f"<div><h3>Calibration</h3><p>{note} Means over seeds; smaller is better.</p>{table}</div>"


def _operating(evaluation: Evaluation) -> str:
    found = evaluation.operating
    if found is None:
        return ""
    thresholds = sorted(found.point.thresholds.values())
    told = " to ".join(dict.fromkeys(format_number(value) for value in (thresholds[0], thresholds[-1])))
    note = (
        f"{found.point.positive} is called from a probability of {told} on (rule {found.point.rule}), chosen on the "
        "validation part of each training before the test part was looked at."
    )
    cells = "".join(
        tag("td", f"{format_number(value)}<small>{format_interval(interval)}</small>")
        for value, interval in found.metrics.values()
    )
    row = tag("th", escape(found.point.positive), scope="row") + cells
    table = html_table(["class", *(METRIC_TITLES[name] for name in found.metrics)], [row])
    return f"<h3>At the operating threshold</h3><p>{escape(note)}</p>{table}"


def _spread(evaluation: Evaluation) -> str:
    if evaluation.n_trainings == 1:
        return ""
    trainings = list(evaluation.metrics[METRICS[0]].per_training)
    rows = [
        tag("th", f"fold {fold}, seed {seed}", scope="row")
        + "".join(tag("td", format_number(evaluation.metrics[name].per_training[fold, seed])) for name in METRICS)
        for fold, seed in trainings
    ]
    rows.append(
        tag("th", "standard deviation", scope="row")
        + "".join(tag("td", format_number(evaluation.metrics[name].sd_trainings)) for name in METRICS)
    )
    table = html_table(["training", *(METRIC_TITLES[name] for name in METRICS)], rows)
    return f"<details><summary>Every training ({len(trainings)})</summary>{table}</details>"
