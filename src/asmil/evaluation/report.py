"""The report of evaluated runs, for all tasks: one document, and its files on disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from asmil.errors import AsmilError
from asmil.evaluation.evaluate import evaluator_of
from asmil.evaluation.result_files import attention_results
from asmil.evaluation.run_evaluation import FEWEST_TO_RANK, PART_TITLES, RunEvaluation
from asmil.files import write_json
from asmil.reporting import Block, Cell, Document, Figure, Folded, Heading, Note, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, sections_of, settings_table
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count, format_interval_of, format_number
from asmil.runs.described import cap_sentence, selection_sentence, train_command
from asmil.runs.description import rows_sha256
from asmil.runs.epochs import Training, read_training
from asmil.runs.learning_curves import learning_figures, stage_starts
from asmil.tables.names import unique_names
from asmil.tasks.metrics import predicted_classes

SHOWN_SLIDES, PICTURED_SLIDES = 4, 2
MOST_LEFT_OUT = 50


def write_report(
    evaluations: RunEvaluation | Sequence[RunEvaluation],
    folder: Path | str | None = None,
    document: Document | None = None,
) -> Path:
    """Write the report of evaluated runs of one task; return the path of the page.

    With a folder: `report.html`, `report.md`, `metrics.csv` and `metrics.json` there. Without, and for one run:
    `report.html` and `evaluation.json` in the run folder, with `-val` or `-patient` in their names if they are not
    about the slides of the test set. Chosen thresholds are saved in the run's `operating_point.json`.

    document: the content of the report, if it was built before
    """
    listed = _told_apart([evaluations] if isinstance(evaluations, RunEvaluation) else evaluations)
    document = document or evaluation_document(listed)
    if folder is not None:
        tables = {"metrics": [row for evaluation in listed for row in evaluation.csv_rows()]}
        write_json(Path(folder) / "metrics.json", [evaluation.to_dict() for evaluation in listed])
        return write_document(document, Path(folder) / "report.html", tables=tables)
    if len(listed) > 1:
        raise AsmilError("a report on several runs needs a separate folder; give one with --out")
    (evaluation,) = listed
    evaluation.keep_choices()
    write_json(evaluation.path / f"evaluation{evaluation.file_suffix}.json", evaluation.to_dict())
    return write_document(document, evaluation.path / f"report{evaluation.file_suffix}.html", markdown=False)


def evaluation_document(evaluations: Sequence[RunEvaluation]) -> Document:
    """The content of the report."""
    if not evaluations:
        raise AsmilError("nothing to report: give at least one evaluated run")
    evaluations = _told_apart(evaluations)
    first = evaluations[0]
    other = next((evaluation for evaluation in evaluations if evaluation.run.kind != first.run.kind), None)
    if other is not None:
        raise AsmilError(
            f"{other.name} is a {other.run.kind} run, but {first.name} is a {first.run.kind} run; evaluate runs of "
            "one task at a time"
        )
    evaluator = evaluator_of(first.run.kind)
    single = len(evaluations) == 1
    sections = [Section("Results", [_summary(evaluations)])]
    for evaluation in evaluations:
        blocks: list[Block] = [
            *_covariates(evaluation),
            *evaluator.blocks(evaluation),
            *_slides(evaluation),
            *_attention(evaluation),
            *_learning(evaluation),
            *_origin(evaluation),
        ]
        sections += (
            sections_of(blocks)
            if single
            else [Section(evaluation.name, [_named(evaluation.name, block) for block in blocks])]
        )
    about = f"{first.method}, preset {first.preset}; {PART_TITLES[first.role]}, {first.sizes}."
    return Document(
        kind=f"Evaluation, {first.run.kind}",
        title=first.name if single else f"{len(evaluations)} runs",
        answer=_answer(evaluations),
        about=about if single else "Use `asmil compare` to test the differences between runs.",
        alarms=_prefixed(evaluations, "alarms"),
        warnings=_warnings(evaluations),
        sections=sections,
        reading=[*evaluator.reading(evaluations), *_about_runs(evaluations)],
    )


def _told_apart(evaluations: Sequence[RunEvaluation]) -> list[RunEvaluation]:
    """The evaluations with names that differ, also if two folders of runs have one name."""
    names = unique_names([evaluation.path for evaluation in evaluations])
    return [
        replace(evaluation, run=evaluation.run.called(name))
        for evaluation, name in zip(evaluations, names, strict=True)
    ]


def _named(run: str, block: Block) -> Block:
    """A table with the name of its run, since the terminal prints no headings."""
    return replace(block, title=f"{run}: {block.title}") if isinstance(block, Table) and block.in_terminal else block


def _answer(evaluations: Sequence[RunEvaluation]) -> str:
    first = evaluations[0]
    shown = first.run.format.compared
    if len(evaluations) == 1:
        return first.in_words
    part, metric = f"on the {PART_TITLES[first.role]}", shown[0]
    defined = [evaluation for evaluation in evaluations if not math.isnan(evaluation.metrics[metric.name].value)]
    if not defined:
        return f"{metric.title} is undefined for all runs {part}."
    choose = max if metric.larger_is_better else min
    best = choose(defined, key=lambda evaluation: evaluation.metrics[metric.name].value)
    highest = best.metrics[metric.name]
    few = " These are too few patients to rank methods." if best.n_patients < FEWEST_TO_RANK else ""
    return (
        f"{best.name} has the best {metric.title} of {len(evaluations)} runs: {format_number(highest.value)} "
        f"(95 % interval {format_interval_of(highest)}) {part}: {best.sizes}.{few}"
    )


def _prefixed(evaluations: Sequence[RunEvaluation], name: str) -> list[str]:
    """Sentences about runs, prefixed with the name of the run if there are several."""
    many = len(evaluations) > 1
    return [
        f"{evaluation.name}: {text}" if many else text
        for evaluation in evaluations
        for text in getattr(evaluation, name)
    ]


def _warnings(evaluations: Sequence[RunEvaluation]) -> list[str]:
    sentences = []
    if any(map(_chose_epoch, evaluations)):
        sentences.append("Optimistic: the epoch was chosen on these validation slides.")
    if len({frozenset(evaluation.rows["slide"]) for evaluation in evaluations}) > 1:
        sentences.append("The runs were not evaluated on the same slides, so their numbers are not comparable.")
    return sentences + _prefixed(evaluations, "warnings")


def _chose_epoch(evaluation: RunEvaluation) -> bool:
    return evaluation.role == "val" and evaluation.run.settings.training.select != "last"


def _summary(evaluations: Sequence[RunEvaluation]) -> Table:
    first = evaluations[0]
    metrics, by_patient = first.run.format.metrics, all(evaluation.unit_name == "patient" for evaluation in evaluations)
    means = list(dict.fromkeys(evaluation.mean_of for evaluation in evaluations))
    common = f"; {means[0]}" if len(means) == 1 and means[0] else ""
    sizes = ["trainings", *([] if by_patient else ["slides"]), "patients"]
    rows: list[Row] = []
    for evaluation in evaluations:
        about = f"{evaluation.method}, preset {evaluation.preset}, {PART_TITLES[evaluation.role]}"
        about += "" if common or not evaluation.mean_of else f", {evaluation.mean_of}"
        estimates = [evaluation.metrics[metric.name] for metric in metrics]
        spreads = map(evaluation.spread, estimates)
        cells = map(estimate_cell, estimates, spreads, [metric.scale for metric in metrics])
        folds, seeds = format_count(evaluation.n_folds, "fold"), format_count(evaluation.n_seeds, "seed")
        trainings = f"{evaluation.n_trainings} ({folds} × {seeds})"
        slides = [] if by_patient else [str(evaluation.n_slides)]
        rows.append([Cell(evaluation.name, (about,)), *cells, trainings, *slides, str(evaluation.n_patients)])
    varies = any(isinstance(cell, Cell) and cell.spread for row in rows for cell in row)
    optimistic = " (optimistic: also used to choose the epoch)" if any(map(_chose_epoch, evaluations)) else ""
    return Table(
        ["run", *(metric.title for metric in metrics), *sizes],
        rows,
        title=f"{PART_TITLES[first.role]}{optimistic}: {first.sizes}{common}",
        caption=f"Value{f' ({common[2:]})' if common else ''} with its 95 % patient-level bootstrap interval"
        f"{', and the standard deviation (sd)' * varies}.",
        in_terminal=True,
        narrow=frozenset([metric.title for metric in metrics if not metric.in_terminal] + sizes),
        emphasis=True,
    )


def _covariates(evaluation: RunEvaluation) -> list[Block]:
    """What the covariates and the images contribute."""
    return [] if evaluation.terms is None else [Heading("With and without covariates"), evaluation.terms.table]


def _slides(evaluation: RunEvaluation) -> list[Block]:
    """The slides with the largest and the smallest errors."""
    task = evaluation.run.format
    names, truth, predictions = evaluation.by_slide
    if task.misfit is None or task.row_in_words is None or len(names) < 2:
        return []
    order = np.argsort(-task.misfit(truth, predictions), kind="stable")
    count = min(SHOWN_SLIDES, len(names) // 2)
    decided = evaluation.decided
    ranks = ("largest error", "smallest error")
    right = np.zeros(len(names), dtype=np.bool_)
    if task.part_name == "class":
        ranks, right = ("least certain", "most certain"), predicted_classes(decided) == truth
    rows = [
        [
            names[slide],
            *task.row_in_words(truth[slide], predictions[slide], decided[slide]),
            rank if right[slide] or task.part_name != "class" else "wrong",
        ]
        for rank, chosen in zip(ranks, (order[:count], order[::-1][:count]), strict=True)
        for slide in chosen.tolist()
    ]
    averaged = "Predictions are averaged over trainings; the" if evaluation.counted_with else "The"
    caption = f"{averaged} largest errors come first."
    heading = Heading(f"{evaluation.unit_name.capitalize()}s with the largest and smallest errors")
    table = Table([evaluation.unit_name, "truth", "prediction", "rank"], rows, caption=caption)
    pictured = [names[slide] for slide in (*order[:PICTURED_SLIDES], *order[::-1][:PICTURED_SLIDES])]
    try:
        from asmil.explain.report_panels import run_panels
    except ModuleNotFoundError:  # machines that only train may lack the packages that read slides
        return [heading, table]
    findings = [f"{alarm.name}." for alarm in evaluation.raised]
    pictures = run_panels(evaluation.run, dict.fromkeys(pictured), findings)
    with_image = [SideBySide(panels) for panels in pictures.values() if len(panels) > 1]
    only_map = [panel for panels in pictures.values() if len(panels) == 1 for panel in panels]
    return [heading, table, *with_image, *([SideBySide(only_map)] if only_map else [])]


def _attention(evaluation: RunEvaluation) -> list[Block]:
    """Results about the attention of the run that other commands wrote into the run folder."""
    results, problems = attention_results(evaluation.path)
    blocks: list[Block] = [Note(f"Left out: {problem}") for problem in problems]
    if results:
        rows = [[Cell(title, (meaning,)), estimate_cell(number.estimate)] for _, _, title, meaning, number in results]
        pages = {page: command for page, command, *_ in results}
        where = ", ".join(f"`{page}` (by `{command}`)" for page, command in pages.items())
        caption = f"Value with its 95 % interval. More in the run folder: {where}."
        blocks.append(Table(["metric", "value"], rows, caption=caption))
    return [Heading("Where the model looks"), *blocks] if blocks else []


def _origin(evaluation: RunEvaluation) -> list[Block]:
    """How the run was made: command, slides left out, trainings and settings."""
    command = train_command(evaluation.run, f"{evaluation.path}-again")
    return [
        Heading("How this run was made"),
        *([f"Command: `{command}`"] if command else []),
        *_left_out(evaluation),
        *_trainings(evaluation),
        Folded("Settings", [settings_table(evaluation.run.values)]),
    ]


def _left_out(evaluation: RunEvaluation) -> list[Block]:
    """Slides of the manifest that the run does not use, with the reason if it is known."""
    trained_on = evaluation.run.cohort
    if not trained_on.is_there:
        return []
    try:
        splits = evaluation.run.splits
        if splits is None:
            return []
        used = set(splits.table["slide"].astype(str))
        cohort, problems = trained_on.read(evaluation.run.kind)
    except AsmilError as error:
        return [f"It is unknown whether slides were left out: {error}"]
    errors = [problem for problem in problems if problem.severity == "error"]
    of_table = next((problem for problem in errors if problem.slide is None), None)
    if of_table is not None:
        return [f"It is unknown whether slides were left out: {of_table}"]
    stored = evaluation.run.settings.cohort.rows_sha256
    if not errors and stored is not None and rows_sha256(evaluation.run.kind, cohort) != stored:
        return [
            f"The rows of {trained_on.manifest} are not those that the run was trained on, so the command trains "
            "another run, and it is unknown whether slides were left out."
        ]
    reasons = {slide.slide: f"{slide.slide}: not in the splits" for slide in cohort.slides}
    reasons |= {str(problem.slide): str(problem) for problem in errors}
    lines = [reason for slide, reason in reasons.items() if slide not in used]
    if not lines:
        return [f"No slide of the manifest was left out ({len(used)} slides)."]
    shown = [*lines[:MOST_LEFT_OUT], *[f"{len(lines) - MOST_LEFT_OUT} more."] * (len(lines) > MOST_LEFT_OUT)]
    return [Folded(f"Left out: {format_count(len(lines), 'slide')}", shown)]


def _learning(evaluation: RunEvaluation) -> list[Block]:
    """The learning curves of a run, with a heading."""
    trainings: list[Training] = []
    blocks: list[Block] = [Heading("Learning curves")]
    for fold, seed in next(iter(evaluation.metrics.values())).per_training:
        try:
            training = read_training(evaluation.run.layout.training(fold, seed), fold, seed)
        except AsmilError as error:
            blocks.append(Note(str(error)))
        else:
            trainings += [] if training is None else [training]
    figures = learning_figures(trainings) if trainings else {}
    if not figures:
        return [*blocks, "The epochs were not recorded."]
    caption = "The dashed line marks the epoch that was kept."
    if len(trainings) > 1:
        caption = "Thin lines are single trainings, thick lines their mean. Rings mark the epochs that were kept."
    if stage_starts(trainings[0]):
        caption += " Dotted lines mark the start of a training stage with a new model."
    panels = [Figure(figure, f"Learning curves: {title}") for title, figure in figures.items()]
    return [*blocks, SideBySide(panels), caption]


def _trainings(evaluation: RunEvaluation) -> list[Block]:
    metrics = evaluation.run.format.metrics
    estimates = [evaluation.metrics[metric.name] for metric in metrics]
    keys = list(estimates[0].per_training)
    if len(keys) == 1:
        return []
    names = evaluation.run.fold_names
    rows = [
        [f"{names[fold]}, seed {seed}", *(format_number(metric.per_training[fold, seed]) for metric in estimates)]
        for fold, seed in keys
    ]
    for over in ("trainings", "folds", "seeds"):
        spreads = [getattr(metric, f"sd_{over}") for metric in estimates]
        if not all(map(math.isnan, spreads)):
            rows.append([f"standard deviation over {over}", *map(format_number, spreads)])
    table = Table(["training", *(metric.title for metric in metrics)], rows)
    return ["Results by site:", table] if names else [Folded(f"Trainings ({len(keys)})", [table])]


def _about_runs(evaluations: Sequence[RunEvaluation]) -> list[str]:
    """How the epoch of each run was chosen, and how many tiles the run used."""
    sentences = []
    if len(evaluations) > 1:
        sentences.append(
            "Overlapping intervals of two runs do not mean that the runs do not differ: both use the same patients."
        )
    for evaluation in evaluations:
        prefix = f"{evaluation.name}: " if len(evaluations) > 1 else ""
        has_validation = bool((evaluation.run.predictions["role"] == "val").any())
        chosen = selection_sentence(
            evaluation.run.settings, evaluation.role, has_validation, evaluation.run.format.selected_by
        )
        sentences += [prefix + text for text in (chosen, cap_sentence(evaluation.run.settings))]
    return sentences
