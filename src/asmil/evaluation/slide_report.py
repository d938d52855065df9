"""Reports of regression and multi-label runs, on disk and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from asmil.errors import AsmilError
from asmil.evaluation.page_parts import caveat_section, html_table, image, settings_block, tag, whole_page
from asmil.evaluation.regression_runs import scatter_figure
from asmil.evaluation.run_sections import learning_section, metric_cell
from asmil.evaluation.run_sentences import part_title, sentences_of_runs
from asmil.evaluation.slide_evaluation import SlideEvaluation
from asmil.evaluation.summary import MetricSummary
from asmil.evaluation.tables import format_interval, format_number
from asmil.files import write_json, write_text

if TYPE_CHECKING:
    from rich.table import Table

TITLES = {
    "mae": "absolute error",
    "rmse": "RMS error",
    "r2": "R²",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "macro_auc": "macro-AUC",
    "macro_f1": "macro-F1",
    "mean_ap": "mean average precision",
    "auc": "AUC",
    "f1": "F1",
    "ap": "average precision",
}
ONLY_IN_REPORT = ("pearson",)
"""What does not fit into a terminal."""
WITHOUT_BAR = ("mae", "rmse", "r2", "pearson", "spearman")
PART_TITLES = {"test": "test part", "val": "validation part"}
MEANING = {
    "regression": "Errors are in the unit of the target. R² compares with the mean of the evaluated targets: 0 is as "
    "good as that mean, and it can be below 0. Pearson and Spearman correlations do not see a shift or a scale.",
    "multilabel": "Every label is a question of its own: its AUC, its average precision (whose chance level is the "
    "share of slides with the label), and its F1 when called from a probability of 0.5 on. Means give every label the "
    "same weight. They leave out labels whose AUC or average precision is undefined; an F1 without a denominator is 0.",
}


def write_slide_report(
    evaluations: SlideEvaluation | Sequence[SlideEvaluation], folder: Path | str | None = None
) -> Path:
    """Write a page and the numbers; return the path of the page.

    One evaluation without a folder: `report.html` and `evaluation.json` in the run's own folder (`-val` behind the
    names for the validation part). With a folder: `report.html` and `metrics.json` there.
    """
    listed = [evaluations] if isinstance(evaluations, SlideEvaluation) else list(evaluations)
    if not listed:
        raise AsmilError("there is nothing to report: give at least one evaluated run")
    if folder is not None:
        page = Path(folder) / "report.html"
        write_json(Path(folder) / "metrics.json", [evaluation.to_dict() for evaluation in listed])
    elif len(listed) == 1:
        suffix = "" if listed[0].role == "test" else f"-{listed[0].role}"
        page = listed[0].run.path / f"report{suffix}.html"
        write_json(listed[0].run.path / f"evaluation{suffix}.json", listed[0].to_dict())
    else:
        raise AsmilError("the report of several runs needs a folder of its own; give one with --out")
    write_text(page, render_slide_page(listed))
    return page


def render_slide_page(evaluations: Sequence[SlideEvaluation]) -> str:
    """The whole page as text; the runs are of one task."""
    first = evaluations[0]
    title = first.name if len(evaluations) == 1 else f"{len(evaluations)} runs compared"
    part = PART_TITLES[first.role]
    sizes = f"{first.n_slides} slides of {first.n_patients} patients"
    header = (
        f"<header><p>Evaluation of {first.run.kind}</p><h1>{escape(title)}</h1><p>On the {part}: {sizes}.</p></header>"
    )
    blocks = [header, _summary(evaluations), *map(_run, evaluations), caveat_section(slide_caveats(evaluations))]
    return whole_page(f"Evaluation: {title}", blocks)


def slide_caveats(evaluations: Sequence[SlideEvaluation]) -> list[str]:
    """What a reader must know: sentences that hold for all runs, then those of single runs."""
    sentences = [
        "Values are means over seeds of the metric on all slides of the part, the folds of a seed joined. "
        + MEANING[evaluations[0].run.kind],
        "Intervals hold the middle 95 % of a bootstrap over patients, each with all its slides. They say how much the "
        "choice of patients matters; the noise of training is the standard deviation (sd) over seeds.",
    ]
    if len({frozenset(evaluation.rows["slide"]) for evaluation in evaluations}) > 1:
        sentences.append("The runs were not evaluated on the same slides; their numbers do not compare.")
    return sentences + sentences_of_runs(evaluations)


def slide_summary_table(evaluations: Sequence[SlideEvaluation]) -> Table:
    """The table that `asmil evaluate` prints: a row a run, every metric with spread and interval."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape as plain
    from rich.table import Table

    first = evaluations[0]
    part = part_title(first.role, (evaluation.run.config for evaluation in evaluations))
    sizes = f"{first.n_slides} slides of {first.n_patients} patients"
    table = Table(title=f"{part}: {sizes}; 95 % interval by patient", box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold", min_width=12)
    shown = [name for name in first.metrics if name not in ONLY_IN_REPORT]
    for name in shown:
        table.add_column(TITLES[name].replace(" ", "\n"), justify="right", no_wrap=True)
    for evaluation in evaluations:
        cells = [
            f"{format_number(metric.value)}{_spread(metric, ' ±')}\n[dim]{format_interval(metric.interval, '–')}[/dim]"
            for metric in (evaluation.metrics[name] for name in shown)
        ]
        trainings = f"{evaluation.n_trainings} training{'s' * (evaluation.n_trainings > 1)}"
        table.add_row(f"{plain(evaluation.name)}\n[dim]{plain(evaluation.method)}, {trainings}[/dim]", *cells)
    return table


def _summary(evaluations: Sequence[SlideEvaluation]) -> str:
    names = list(evaluations[0].metrics)
    rows = []
    for evaluation in evaluations:
        about = f"{evaluation.method}, preset {evaluation.preset}, {PART_TITLES[evaluation.role]}"
        cells = [tag("th", f"{escape(evaluation.name)}<small>{escape(about)}</small>", scope="row")]
        for name in names:
            metric, scale = evaluation.metrics[name], None if name in WITHOUT_BAR else (0.0, 1.0)
            cells.append(tag("td", metric_cell(metric.value, metric.interval, _spread(metric, "sd "), scale)))
        folds, seeds = evaluation.n_folds, evaluation.n_seeds
        count = f"{evaluation.n_trainings} ({folds} fold{'s' * (folds > 1)} × {seeds} seed{'s' * (seeds > 1)})"
        rows.append("".join([*cells, tag("td", count)]))
    note = "Mean over seeds, 95 % interval by patient, and the standard deviation over seeds."
    table = html_table(["run", *(TITLES[name] for name in names), "trainings"], rows, css="summary")
    return f"<section><h2>Results</h2><p>{note}</p>{table}</section>"


def _run(evaluation: SlideEvaluation) -> str:
    regression = evaluation.run.kind == "regression"
    blocks = [
        f"<h2>{escape(evaluation.name)}</h2>",
        image(scatter_figure(evaluation), "Predicted and true values") if regression else _labels(evaluation),
        learning_section(evaluation.run.path, next(iter(evaluation.metrics.values())).per_training),
        _trainings(evaluation),
        settings_block(evaluation.run.config),
    ]
    return f"<section>{''.join(blocks)}</section>"


def _labels(evaluation: SlideEvaluation) -> str:
    rows, names = [], list(next(iter(evaluation.labels.values())))
    for label, found in evaluation.labels.items():
        cells = [
            tag("td", f"{format_number(value)}<small>{format_interval(interval)}</small>")
            for value, interval in found.values()
        ]
        support = tag("td", str(evaluation.support[label]))
        rows.append(tag("th", escape(label), scope="row") + "".join(cells) + support)
    table = html_table(["label", *(TITLES[name] for name in names), "slides with it"], rows)
    return f"<h3>Labels</h3><p>Mean over seeds, 95 % interval by patient.</p>{table}"


def _trainings(evaluation: SlideEvaluation) -> str:
    keys = list(next(iter(evaluation.metrics.values())).per_training)
    if len(keys) == 1:
        return ""
    rows = [
        tag("th", f"fold {key[0]}, seed {key[1]}", scope="row")
        + "".join(tag("td", format_number(metric.per_training[key])) for metric in evaluation.metrics.values())
        for key in keys
    ]
    table = html_table(["training", *(TITLES[name] for name in evaluation.metrics)], rows)
    return f"<details><summary>Every training ({len(keys)})</summary>{table}</details>"


def _spread(metric: MetricSummary, before: str) -> str:
    return "" if math.isnan(metric.sd_seeds) else f"{before}{format_number(metric.sd_seeds)}"
