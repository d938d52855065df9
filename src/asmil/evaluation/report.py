"""The report of evaluated runs, for all tasks: one document, and its files on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asmil.errors import AsmilError
from asmil.evaluation.evaluate import PART_TITLES, Role, RunEvaluation, evaluator_of
from asmil.files import write_json
from asmil.reporting import (
    Block,
    Cell,
    Document,
    Figure,
    Folded,
    Heading,
    Note,
    Row,
    Section,
    Table,
    estimate_cell,
    settings_table,
)
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count, format_interval, format_number
from asmil.training.finished_run import Training, read_training, setting
from asmil.training.learning_curves import learning_figure, stage_starts

SLIDE_READING = (
    "Values are means over seeds of the metric on all slides of the part, with the folds of a seed joined.",
    "Intervals are 95 % percentile intervals of a bootstrap over patients, each drawn with all its slides. They show "
    "how much the choice of patients matters; the standard deviation (sd) over seeds shows the noise of training.",
)
"""How to read the numbers of runs that predict slides."""


def write_report(evaluations: RunEvaluation | Sequence[RunEvaluation], folder: Path | str | None = None) -> Path:
    """Write the report of evaluated runs of one task; return the path of the page.

    With a folder: `report.html`, `report.md`, `metrics.csv` and `metrics.json` there. Without, and for one run:
    `report.html` and `evaluation.json` in the run's own folder, with `-val` or `-patient` in their names if they are
    not of the slides of the test part. Chosen thresholds are kept in the run's `operating_point.json`.
    """
    listed = [evaluations] if isinstance(evaluations, RunEvaluation) else list(evaluations)
    document = evaluation_document(listed)
    if folder is not None:
        tables = {"metrics": [row for evaluation in listed for row in evaluation.csv_rows()]}
        write_json(Path(folder) / "metrics.json", [evaluation.to_dict() for evaluation in listed])
        return write_document(document, Path(folder) / "report.html", tables=tables)
    if len(listed) > 1:
        raise AsmilError("the report of several runs needs its own folder; give one with --out")
    (one,) = listed
    one.keep_choices()
    write_json(one.path / f"evaluation{one.file_suffix}.json", one.to_dict())
    return write_document(document, one.path / f"report{one.file_suffix}.html", markdown=False)


def evaluation_document(evaluations: Sequence[RunEvaluation]) -> Document:
    """What the report says."""
    if not evaluations:
        raise AsmilError("there is nothing to report: give at least one evaluated run")
    first = evaluations[0]
    other = next((one for one in evaluations if one.run.kind != first.run.kind), None)
    if other is not None:
        raise AsmilError(
            f"{other.name} is a run of {other.run.kind}, {first.name} one of {first.run.kind}; evaluate runs of one "
            "task at a time"
        )
    evaluator = evaluator_of(first.run.kind)
    single = len(evaluations) == 1
    sections = [Section("Results", [_summary(evaluations)])]
    for one in evaluations:
        blocks = [*evaluator.blocks(one), *_learning(one), *_trainings(one)]
        sections.append(Section(one.name, [*blocks, Folded("Settings", [settings_table(one.run.config)])]))
    return Document(
        kind=f"Evaluation, {first.run.kind}",
        title=first.name if single else f"{len(evaluations)} runs",
        answer=_answer(evaluations),
        about="" if single else "For tests of the differences between runs use `asmil compare`.",
        warnings=_warnings(evaluations),
        sections=sections,
        reading=[*evaluator.reading(evaluations), *_about_runs(evaluations)],
    )


def parts_table(evaluation: Any, column: str, caption: str) -> Table:
    """One row per class or label of an evaluation of slides, with its metrics and the number of slides that have it."""
    metrics = evaluation.run.format.part_metrics
    return Table(
        [evaluation.part_name, *(metric.title for metric in metrics), column],
        [
            [row.name, *(estimate_cell(row.metrics[metric.name]) for metric in metrics), str(row.support)]
            for row in evaluation.classes
        ],
        narrow=frozenset(metric.title for metric in metrics if not metric.in_terminal),
        title=f"each {evaluation.part_name}",
        caption=caption,
        in_terminal=True,
    )


def _answer(evaluations: Sequence[RunEvaluation]) -> str:
    first = evaluations[0]
    part = f"on the {PART_TITLES[first.role]}"
    shown = first.run.format.compared
    if len(evaluations) == 1:
        found = [
            f"{metric.title} {format_number(one.value)} (95 % interval {format_interval(one.interval)})"
            for metric in shown
            for one in [first.metrics[metric.name]]
        ]
        return f"{', '.join(found)} {part}: {first.sizes}."
    metric = shown[0]
    defined = [one for one in evaluations if not math.isnan(one.metrics[metric.name].value)]
    if not defined:
        return f"{metric.title} is undefined for all runs {part}."
    choose = max if metric.larger_is_better else min
    best = choose(defined, key=lambda one: one.metrics[metric.name].value)
    value = best.metrics[metric.name]
    return (
        f"{best.name} has the best {metric.title} of {len(evaluations)} runs: {format_number(value.value)} "
        f"(95 % interval {format_interval(value.interval)}) {part}: {best.sizes}."
    )


def _warnings(evaluations: Sequence[RunEvaluation]) -> list[str]:
    found = []
    if any(_chose_epoch(one) for one in evaluations):
        found.append("Optimistic: these validation slides also chose the epoch.")
    if len({frozenset(one.rows["slide"]) for one in evaluations}) > 1:
        found.append("The runs were not evaluated on the same slides; their numbers do not compare.")
    for one in evaluations:
        prefix = f"{one.name}: " if len(evaluations) > 1 else ""
        found += [prefix + text for text in one.warnings]
    return found


def _chose_epoch(evaluation: RunEvaluation) -> bool:
    return evaluation.role == "val" and evaluation.run.setting("training", "select") != "last"


def _summary(evaluations: Sequence[RunEvaluation]) -> Table:
    first = evaluations[0]
    metrics, by_patient = first.run.format.metrics, first.run.format.by_patient
    sizes = ["trainings", *([] if by_patient else ["slides"]), "patients"]
    rows: list[Row] = []
    for one in evaluations:
        about = f"{one.method}, preset {one.preset}, {PART_TITLES[one.role]}"
        cells = [
            estimate_cell(one.metrics[name.name], one.spread(one.metrics[name.name]), name.scale) for name in metrics
        ]
        trainings = f"{one.n_trainings} ({format_count(one.n_folds, 'fold')} × {format_count(one.n_seeds, 'seed')})"
        slides = [] if by_patient else [str(one.n_slides)]
        rows.append([Cell(one.name, (about,)), *cells, trainings, *slides, str(one.n_patients)])
    optimistic = " (optimistic: it chose the epoch)" if any(map(_chose_epoch, evaluations)) else ""
    return Table(
        ["run", *(metric.title for metric in metrics), *sizes],
        rows,
        title=f"{PART_TITLES[first.role]}{optimistic}: {first.sizes}",
        caption="Mean with its 95 % interval by patient, and the standard deviation (sd).",
        in_terminal=True,
        narrow=frozenset([metric.title for metric in metrics if not metric.in_terminal] + sizes),
        emphasis=True,
    )


def _learning(evaluation: RunEvaluation) -> list[Block]:
    """The learning curves of a run, with a heading."""
    found: list[Training] = []
    blocks: list[Block] = [Heading("Learning curves")]
    for fold, seed in next(iter(evaluation.metrics.values())).per_training:
        try:
            training = read_training(evaluation.path, fold, seed)
        except AsmilError as error:
            blocks.append(Note(str(error)))
        else:
            found += [] if training is None else [training]
    figure = learning_figure(found) if found else None
    if figure is None:
        return [*blocks, "The epochs were not recorded."]
    caption = "The dashed line marks the epoch that was kept."
    if len(found) > 1:
        caption = "Thin lines are single trainings, thick lines their mean. Rings mark the epochs that were kept."
    if stage_starts(found[0]):
        caption += " At a dotted line a new training stage begins, with its own model."
    return [*blocks, Figure(figure, "Learning curves", caption)]


def _trainings(evaluation: RunEvaluation) -> list[Block]:
    metrics = evaluation.run.format.metrics
    estimates = [evaluation.metrics[metric.name] for metric in metrics]
    keys = list(estimates[0].per_training)
    if len(keys) == 1:
        return []
    rows = [
        [f"fold {fold}, seed {seed}", *(format_number(one.per_training[fold, seed]) for one in estimates)]
        for fold, seed in keys
    ]
    for over in ("trainings", "folds", "seeds"):
        spreads = [getattr(one, f"sd_{over}") for one in estimates]
        if not all(map(math.isnan, spreads)):
            rows.append([f"standard deviation over {over}", *map(format_number, spreads)])
    table = Table(["training", *(metric.title for metric in metrics)], rows)
    return [Folded(f"All {len(keys)} trainings", [table])]


def _about_runs(evaluations: Sequence[RunEvaluation]) -> list[str]:
    """How the epoch of each run was chosen, and how many tiles it used."""
    sentences = []
    if len(evaluations) > 1:
        sentences.append(
            "Overlapping intervals of two runs do not test their difference: both were measured on the same patients."
        )
    for one in evaluations:
        prefix = f"{one.name}: " if len(evaluations) > 1 else ""
        has_validation = bool((one.run.predictions["role"] == "val").any())
        chosen = selection_sentence(one.run.config, one.role, has_validation, one.run.format.selected_by)
        sentences += [prefix + text for text in (chosen, cap_sentence(one.run.config))]
    return sentences


def selection_sentence(config: Mapping[str, Any], role: Role, has_validation: bool, metric: str) -> str:
    """Which epoch was kept, and whether the evaluated part had a say in it; metric: what chooses by default."""
    rule = setting(config, "training", "select")
    if rule is None:
        return "The run does not say which epoch was kept (training.select is not set)."
    if rule == "last":
        return "The last epoch was kept; no data chose it (training.select: last)."
    if not has_validation:
        return "The run had no validation part, so the last epoch was kept."
    chosen = "the lowest loss" if rule == "loss" else f"the highest {metric}"
    sentence = f"The epoch was chosen on the validation part, by {chosen}"
    if role == "val":
        return f"{sentence}. These numbers are of the same part, so they are optimistic."
    return f"{sentence}; the test part was not used."


def cap_sentence(config: Mapping[str, Any]) -> str:
    """How many tiles training and prediction used."""
    cap = setting(config, "data", "max_tiles")
    if cap is None:
        return "Training and prediction used all tiles (data.max_tiles is not set)."
    return f"Training used at most {cap} tiles per bag, drawn anew every epoch; prediction used all (data.max_tiles)."
