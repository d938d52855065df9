"""The page of a report: one HTML file that needs nothing else.

Every text that comes from outside (names of runs, classes, settings) passes `html.escape`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from asmil.errors import AsmilError
from asmil.evaluation.caveats import caveats_of
from asmil.evaluation.figures import learning_figure, roc_figure, stage_starts
from asmil.evaluation.page_parts import caveat_section, html_table, image, settings_block, tag, whole_page
from asmil.evaluation.run import Training, read_training
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
    spread = "" if math.isnan(metric.sd_seeds) else f"<small>sd {format_number(metric.sd_seeds)}</small>"
    return (
        f"<b>{format_number(metric.value)}</b>{_interval_bar(metric)}"
        f"<small>{format_interval(metric.interval)}</small>{spread}"
    )


def _interval_bar(metric: MetricSummary) -> str:
    """A bar from 0 to 1 with the interval and the value marked."""
    low, high = metric.interval
    if math.isnan(low) or math.isnan(metric.value):
        return ""
    width = max(0.8, 100 * (high - low))
    return (
        '<svg class="bar" viewBox="0 0 100 8" role="img" aria-label="interval on a scale from 0 to 1">'
        '<rect x="0" y="3" width="100" height="2" class="scale"/>'
        f'<rect x="{100 * low:.1f}" y="1" width="{width:.1f}" height="6" class="range"/>'
        f'<rect x="{100 * metric.value - 0.6:.1f}" y="0" width="1.2" height="8" class="value"/></svg>'
    )


def _run(evaluation: Evaluation) -> str:
    trainings, problems = _trainings(evaluation)
    blocks = [
        f"<h2>{escape(evaluation.name)}</h2>",
        _classes(evaluation),
        f'<div class="side">{_confusion(evaluation)}{image(roc_figure(evaluation), "ROC curves")}</div>',
        "<h3>Learning curves</h3>",
        _learning(trainings, problems),
        _spread(evaluation),
        settings_block(evaluation.run.config),
    ]
    return f"<section>{''.join(blocks)}</section>"


def _trainings(evaluation: Evaluation) -> tuple[list[Training], list[str]]:
    found, problems = [], []
    for fold, seed in evaluation.metrics[METRICS[0]].per_training:
        try:
            training = read_training(evaluation.run.path, fold, seed)
        except AsmilError as error:
            problems.append(str(error))
        else:
            if training is not None:
                found.append(training)
    return found, problems


def _learning(trainings: Sequence[Training], problems: Iterable[str]) -> str:
    notes = "".join(f'<p class="note">{escape(problem)}</p>' for problem in problems)
    figure = learning_figure(trainings) if trainings else None
    if figure is None:
        return notes + '<p class="note">The course of the trainings was not recorded.</p>'
    if len(trainings) > 1:
        caption = "Thin lines are single trainings, thick ones their mean. Rings mark the epochs that were kept."
    else:
        caption = "The dashed line marks the epoch that was kept."
    if stage_starts(trainings[0]):
        caption += " At the dotted line a new stage of the training begins, with a model of its own."
    return f"{notes}<p>{caption}</p>{image(figure, 'Learning curves')}"


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
