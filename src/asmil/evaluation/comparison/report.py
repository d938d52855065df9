"""The report of a comparison: a web page, and tables for papers and programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest, FoldTest
from asmil.evaluation.curves import BAND_DRAWS, KINDS, run_curves
from asmil.evaluation.run_evaluation import FEWEST_TO_RANK, PART_TITLES
from asmil.reporting import Block, Cell, Document, Figure, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, problem_sections
from asmil.reporting.drawing import COLORS, EDGE, ONE_COLUMN, new_figure, plain_text, svg_text
from asmil.reporting.estimate import TOO_FEW, Estimate, jsonable
from asmil.reporting.files import write_document
from asmil.reporting.formats import (
    format_count,
    format_duration,
    format_number,
    format_p,
    format_signed,
    format_signed_interval,
)
from asmil.tasks.base import Metric
from asmil.tasks.intervals import draw_patients, is_at_edge, number_patients

MOST_IN_ANSWER = 2
NAMES = ("run", "reference", "metric")
LONGEST_LINE = 30
"""Characters of a name in a figure; longer names continue on the next line."""
SIGNIFICANT = 0.05
"""Corrected p-values from here on are named beside an interval that excludes 0."""
HOW = {
    "value": "mean over seeds",
    "interval": "95 % percentile interval of a bootstrap over patients",
    "difference": "difference of the means over seeds",
    "difference_interval": "95 % percentile interval of a bootstrap over seeds (per run) and patients (same for both)",
    "difference_p": "the same bootstrap: twice the share of resamples at or beyond 0",
    "ensemble": "probabilities averaged over seeds",
    "ensemble_interval": "95 % percentile interval of a bootstrap over patients",
    "folds": "mean over folds of the difference in each fold",
    "folds_interval": "95 % interval of the corrected resampled t-test",
}
"""Definitions of the numbers, for result files and captions."""


def write_comparison(comparison: Comparison, folder: Path | str) -> Path:
    """Write `comparison.{csv,json,md,tex,html}` and `differences.csv`; return the path of the page."""
    tables = {"comparison": list(_run_rows(comparison)), "differences": list(_difference_rows(comparison))}
    latex = [runs_table(comparison), differences_table(comparison), *_other_tables(comparison)]
    page = Path(folder) / "comparison.html"
    return write_document(comparison_document(comparison), page, comparison_to_dict(comparison), tables, latex)


def comparison_document(comparison: Comparison) -> Document:
    """The content of the report."""
    note = "Intervals come from a bootstrap over seeds and patients; blue ones exclude 0."
    blocks: list[Block] = [
        differences_table(comparison),
        Figure(forest_figure(comparison), "Differences with intervals", note),
        *_other_tables(comparison),
    ]
    sections = [
        Section("Runs", [_in_words(comparison), runs_table(comparison), *_curves(comparison)]),
        Section("Differences", blocks),
    ]
    classes = _classes_table(comparison)
    if classes.rows:
        sections.append(Section("Classes", [classes]))
    sections += problem_sections(comparison.problems, "Runs left out")
    against = "" if comparison.reference is None else f" Reference: {comparison.reference}."
    return Document(
        kind="Comparison",
        title=f"{len(comparison.runs)} runs",
        answer=answer_of(comparison),
        about=f"On the {PART_TITLES[comparison.role]}: {sizes_of(comparison)}.{against}",
        alarms=comparison.alarms,
        warnings=list(_warnings(comparison)),
        sections=sections,
        reading=list(_reading(comparison)),
    )


def sizes_of(comparison: Comparison) -> str:
    """How many slides and patients the runs were compared on, as text."""
    patients = format_count(comparison.n_patients, "patient")
    by_patient = comparison.unit == "patient" or comparison.task.by_patient
    slides = "" if by_patient else f"{format_count(comparison.n_slides, 'slide')} of "
    return f"{slides}{patients}" + (f", {comparison.n_folds} folds" if comparison.n_folds > 1 else "")


def answer_of(comparison: Comparison) -> str:
    """The result in one or two sentences, with what speaks against it."""
    return _clear_differences(comparison) + _opposite_signs(comparison)


def _opposite_signs(comparison: Comparison) -> str:
    """Which differences have another sign if another quantity is compared, as a sentence; alarms may hide warnings."""
    said = [words for difference in comparison.differences if (words := difference.opposite_words)]
    more = f"; {len(said) - MOST_IN_ANSWER} more below" if len(said) > MOST_IN_ANSWER else ""
    return f" Opposite signs: {'; '.join(said[:MOST_IN_ANSWER])}{more}." if said else ""


def _clear_differences(comparison: Comparison) -> str:
    clear = [row for row in comparison.differences if row.interval.excludes_zero]
    too_few = f" {format_count(comparison.n_patients, 'patient')} are too few to rank methods."
    few = too_few * (comparison.n_patients < FEWEST_TO_RANK)
    if not clear:
        return "No difference shown: no 95 % interval of a difference excludes 0." + few
    may_be_chance = [row.p_holm >= SIGNIFICANT for row in clear]
    here = "on these patients " * any(may_be_chance)
    said = [
        f"{row.run} is {here}{'better' if (row.value > 0) == row.metric.larger_is_better else 'worse'} than "
        f"{row.reference} in {row.metric.title}: {format_signed(row.value)} ({format_signed_interval(row.interval)})"
        + f", but p is {format_p(row.p_holm)} after correction for {comparison.family} comparisons"
        * by_chance
        for row, by_chance in zip(clear, may_be_chance, strict=True)
    ]
    more = len(said) - MOST_IN_ANSWER
    return "; ".join(said[:MOST_IN_ANSWER]) + (f"; {more} more below." if more > 0 else ".") + few


def _warnings(comparison: Comparison) -> Iterator[str]:
    if comparison.role == "val":
        yield "These are validation slides: if the epoch was chosen on them, all numbers here are optimistic."
    yield from comparison.warnings
    if comparison.skipped:
        drawn = f"{comparison.skipped} of {comparison.resamples} bootstrap resamples"
        yield f"{drawn} contain a single class and were skipped."


def _has_seeds(comparison: Comparison) -> bool:
    return any(len(run.seeds) > 1 for run in comparison.runs)


def runs_table(comparison: Comparison) -> Table:
    """One row per run, the best first; a value is bold if the interval of a difference of the best excludes 0."""
    metric = comparison.metrics[0]
    ranked = sorted(comparison.runs, key=lambda run: run.metrics[metric.name].value, reverse=metric.larger_is_better)
    timed = any(run.seconds is not None for run in ranked)
    rows: list[Row] = [
        [
            Cell(run.name, (f"{run.method}, preset {run.preset}",)),
            *(
                estimate_cell(value, _spread(value), strong=_is_shown_best(comparison, run.name, metric))
                for metric in comparison.metrics
                for value in [run.metrics[metric.name]]
            ),
            str(len(run.seeds)),
            *[format_duration(run.seconds)] * timed,
        ]
        for run in ranked
    ]
    mean = "Mean over seeds" if _has_seeds(comparison) else "One training per fold"
    over_seeds = "; mean over seeds" * _has_seeds(comparison)
    return Table(
        ["run", *(metric.title for metric in comparison.metrics), "seeds", *["training time"] * timed],
        rows,
        title=f"{PART_TITLES[comparison.role]}: {sizes_of(comparison)}{over_seeds}",
        caption=f"{mean}, 95 % patient-level bootstrap interval, standard deviation (sd). Best {metric.title} first. "
        f"Bold: best, and the interval of a difference excludes 0.{' Training time: sum over trainings.' * timed}",
        narrow=frozenset({"training time"}),
        in_terminal=True,
        emphasis=True,
    )


def _in_words(comparison: Comparison) -> str:
    """The errors of each run, in one paragraph; each slide is counted once, by its mean prediction."""
    assert comparison.task.in_words is not None
    said = []
    for run in comparison.runs:
        rows, predictions = comparison.paired.rows.by_slide(comparison.paired.runs[run.name].predictions.mean(axis=0))
        values = {name: metric.value for name, metric in run.metrics.items()}
        said.append(f"{run.name} {comparison.task.in_words(rows.truth, predictions, values, comparison.unit)}.")
    several = _has_seeds(comparison) or comparison.paired.rows.folds_overlap
    averaged = "With the predictions of its trainings averaged: " * (several and comparison.task.are_probabilities)
    return averaged + " ".join(said)


def _is_shown_best(comparison: Comparison, run: str, metric: Metric) -> bool:
    about = [row for row in comparison.differences if row.metric == metric and run in (row.run, row.reference)]
    return run in comparison.best(metric) and any(row.interval.excludes_zero for row in about)


def _spread(estimate: Estimate) -> tuple[str, float]:
    """Over seeds, or over folds if there is one seed."""
    sd = estimate.sd_seeds
    return ("folds", estimate.sd_folds) if math.isnan(sd) else ("seeds", sd)


def differences_table(comparison: Comparison) -> Table:
    """The differences of the means over seeds, one row per pair and metric, with interval and p-values."""
    rows: list[Row] = [
        [*_names(row), _difference_cell(row.estimate), format_p(row.p), format_p(row.p_holm)]
        for row in comparison.differences
    ]
    of = "of the means over seeds" if _has_seeds(comparison) else ""
    caption = (
        f"Run minus reference{', ' * bool(of)}{of}. Interval and p come from one bootstrap over seeds and patients; p "
        f"(Holm) is adjusted over all {comparison.family}."
    )
    columns = [*NAMES, "difference", "p", f"p (Holm, {comparison.family})"]
    title = " ".join(filter(None, ["differences", of])) + ": run minus reference"
    return Table(columns, rows, title=title, caption=caption, in_terminal=True)


def _other_tables(comparison: Comparison) -> list[Table]:
    """Differences of other quantities, each with its own interval and p-value: seed ensembles, means over folds."""
    return [table for table in (_ensembles_table(comparison), _folds_table(comparison)) if table.rows]


def _ensembles_table(comparison: Comparison) -> Table:
    rows: list[Row] = [
        [
            *_names(row),
            _difference_cell(test.estimate),
            test.test.partition(" ")[0],
            *map(format_p, (test.p, test.p_holm)),
        ]
        for row in comparison.differences
        if (test := row.ensemble) is not None
    ]
    what = "seed ensembles" if _has_seeds(comparison) else "trained models"
    averaged = f" ({HOW['ensemble']})" * _has_seeds(comparison)
    caption = (
        f"Run minus reference, of the {what}{averaged}. Intervals come from a bootstrap "
        f"over patients, p from the named test; p (Holm) is adjusted over all {comparison.ensemble_family}."
    )
    columns = [*NAMES, "difference", "test", "p", f"p (Holm, {comparison.ensemble_family})"]
    tests = ", ".join(dict.fromkeys(str(row[4]) for row in rows))
    title = f"differences of the {what}: run minus reference, tests: {tests}"
    return Table(columns, rows, title=title, caption=caption, in_terminal=True, narrow=frozenset({"test"}))


def _folds_table(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for row in comparison.differences:
        if (test := row.folds) is not None:
            notes = () if math.isnan(test.t) else (f"|t| = {abs(test.t):.2f}, df = {test.df}",)
            rows.append([*_names(row), _difference_cell(test.estimate), Cell(format_p(test.p), notes)])
    caption = (
        "Run minus reference in each fold, mean over folds, with interval and p of the corrected resampled t-test."
    )
    return Table([*NAMES, "difference", "p"], rows, title="differences over folds", caption=caption)


def _names(difference: Difference) -> tuple[str, str, str]:
    """The first cells of a row, under NAMES."""
    return difference.run, difference.reference, difference.metric.title


def _difference_cell(estimate: Estimate) -> Cell:
    interval = "too few to say" if estimate.how == TOO_FEW else format_signed_interval(estimate.interval)
    return Cell(format_signed(estimate.value), interval=interval, strong=estimate.interval.excludes_zero)


def _classes_table(comparison: Comparison) -> Table:
    columns = ["run", "reference", "class", "AUC", "AUC of reference", "difference", "p", "p (Holm over classes)"]
    rows: list[Row] = [
        [
            *(pair.run, pair.reference, row.name, format_number(row.auc), format_number(row.auc_reference)),
            Cell(format_signed(row.difference), interval=format_signed_interval(row.interval)),
            *(format_p(row.p), format_p(row.p_holm)),
        ]
        for pair in comparison.differences
        for row in pair.classes
    ]
    return Table(columns, rows, caption=f"DeLong's test of each class against the rest, on {HOW['ensemble']}.")


def _curves(comparison: Comparison) -> list[Block]:
    """ROC and precision-recall curves, each with all runs in one figure; empty if the task has no such curves."""
    rows = comparison.paired.rows
    if not comparison.task.part_metrics:
        return []
    patients = number_patients(rows.patients.tolist())
    draws = draw_patients(comparison.n_patients, min(BAND_DRAWS, comparison.resamples), comparison.bootstrap_seed)
    weights = draws[:, patients].astype(np.float64)
    labels = [1] if comparison.task.has_threshold else range(len(comparison.task.names))
    runs = {name: run.predictions for name, run in comparison.paired.runs.items()}
    present = comparison.task.memberships(rows.truth)
    figures = [
        Figure(run_curves(kind, present, comparison.task.known(rows.truth), runs, weights, labels), kind.title)
        for kind in KINDS
    ]
    caption = f"Bands: 95 % of {len(weights)} bootstrap resamples of patients." + (
        f" Each curve is the mean over the {comparison.task.part_name} curves." * (len(labels) > 1)
    )
    return [SideBySide(figures), caption] if any(figure.content for figure in figures) else []


def forest_figure(comparison: Comparison) -> str:
    """Differences (run minus reference) as dots, 95 % intervals as lines; one panel per metric."""
    by_metric = [[row for row in comparison.differences if row.metric == metric] for metric in comparison.metrics]
    names = [_pair_name(row, comparison.reference) for row in by_metric[0]]
    height = 1.1 + sum(0.2 + 0.2 * (1 + name.count("\n")) for name in names)
    with new_figure(ONE_COLUMN, height * len(by_metric), axes_grid_axis="x", axes_spines_left=False) as figure:
        panels = figure.subplots(len(by_metric), 1, squeeze=False)[:, 0]
        for axes, differences in zip(panels, by_metric, strict=True):
            _draw_differences(axes, names, differences, comparison.reference)
        return svg_text(figure)


def _pair_name(difference: Difference, reference: str | None) -> str:
    """The run; also its reference, if not all runs have the same."""
    words = difference.run if reference is not None else f"{difference.run} − {difference.reference}"
    return plain_text("\n".join(wrap(words, LONGEST_LINE)))


def _draw_differences(
    axes: Axes, names: Sequence[str], differences: Sequence[Difference], reference: str | None
) -> None:
    axes.axvline(0, color=EDGE, linewidth=1, linestyle="--")
    for row, difference in enumerate(differences):
        color = COLORS[0] if difference.interval.excludes_zero else EDGE
        axes.plot(list(difference.interval), [row, row], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot(difference.value, row, "o", color=color, markersize=6)
    metric = differences[0].metric
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    better = "larger is better" if metric.larger_is_better else "smaller is better"
    compared = "difference" if reference is None else plain_text("\n".join(wrap(f"difference to {reference}", 44)))
    axes.set(title=plain_text(metric.title), xlabel=f"{compared} ({better})")


def _reading(comparison: Comparison) -> Iterator[str]:
    """How every number is computed from seeds, folds and patients."""
    titles = " and ".join(metric.title for metric in comparison.metrics)
    if comparison.n_folds == 1:
        folds = f" on the {PART_TITLES[comparison.role]}"
    elif comparison.folds_joined:
        folds = f" on the {PART_TITLES[comparison.role]}s of the {comparison.n_folds} folds, joined for each seed"
    else:
        folds = f", the mean over the {PART_TITLES[comparison.role]}s of {comparison.n_folds} folds"
    seeds = ", averaged over seeds" * _has_seeds(comparison)
    yield (
        f"Values: {titles}{folds}{seeds}. Intervals are 95 % percentile intervals of {comparison.resamples} bootstrap "
        "resamples of patients, each with all its slides; sd is the standard deviation over seeds, or over folds if "
        "there is one seed."
    )
    yield (
        "Differences of the means over seeds: run minus reference. Their interval and p show whether one method is "
        "better than the other on new patients: seeds are resampled for each run separately, patients jointly for "
        "both. An interval that excludes 0 is evidence of a difference. p (Holm) is adjusted over all "
        f"{comparison.family} p-values of this table; intervals are not adjusted for multiple comparisons."
    )
    if any(row.ensemble is not None for row in comparison.differences):
        by_class = "a bootstrap over patients (DeLong's test per class below)"
        auc = "DeLong's test" if comparison.task.has_threshold else by_class
        yield (
            "Differences of the seed ensembles are another quantity, with its own interval and p: probabilities are "
            f"averaged over seeds first. macro-AUC is tested by {auc}, macro-F1 by a permutation test that swaps the "
            "predicted classes of whole patients. p (Holm) is adjusted over all "
            f"{comparison.ensemble_family} p-values of this table. Decide beforehand which table you report."
        )
    if any(difference.per_seed is not None for difference in comparison.differences):
        yield (
            "The p-values of single seeds are in the JSON and CSV files. They are combined as twice their median, "
            "which is valid under any dependence."
        )
    if comparison.n_folds > 1:
        yield (
            "Differences over folds are means of the folds' differences, with the interval and p of the corrected "
            "resampled t-test (Nadeau and Bengio), which accounts for overlapping training sets. They are not adjusted "
            "for multiple comparisons."
        )


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """All results, ready for JSON; undefined numbers are None."""
    content = {
        "task": comparison.task.kind,
        "role": comparison.role,
        "unit": comparison.unit,
        "slides": comparison.n_slides,
        "patients": comparison.n_patients,
        "folds": comparison.n_folds,
        "folds_joined": comparison.folds_joined,
        "reference": comparison.reference,
        "bootstrap": {
            "resamples": comparison.resamples,
            "skipped": comparison.skipped,
            "seed": comparison.bootstrap_seed,
            "level": 0.95,
        },
        "how": HOW,
        "runs": [
            {
                "name": run.name,
                "run": run.path,
                "method": run.method,
                "preset": run.preset,
                "seeds": run.seeds,
                "training_seconds": run.seconds,
                "metrics": {name: difference.to_dict("seeds", "folds") for name, difference in run.metrics.items()},
            }
            for run in comparison.runs
        ],
        "differences": [_difference_to_dict(difference) for difference in comparison.differences],
        "holm_family": comparison.family,
        "ensemble_holm_family": comparison.ensemble_family,
        "notes": [*_reading(comparison), *_warnings(comparison)],
        "problems": comparison.problems,
    }
    return dict(jsonable(content))


def _difference_to_dict(difference: Difference) -> dict[str, Any]:
    return {
        "run": difference.run,
        "reference": difference.reference,
        "metric": difference.metric.name,
        "difference": difference.value,
        **difference.interval._asdict(),
        "sd": difference.sd,
        "skipped": difference.estimate.skipped,
        "p": difference.p,
        "ensemble": None if difference.ensemble is None else _ensemble_to_dict(difference.ensemble),
        "p_holm": difference.p_holm,
        "folds": None if difference.folds is None else _estimate_to_dict(difference.folds),
        "per_seed": difference.per_seed,
    }


def _ensemble_to_dict(test: EnsembleTest) -> dict[str, Any]:
    classes = [
        {"class": row.name, **_without(row, "name", "interval"), **row.interval._asdict()} for row in test.classes
    ]
    return {**_estimate_to_dict(test), "classes": classes, "reason": test.reason or None}


def _estimate_to_dict(test: EnsembleTest | FoldTest) -> dict[str, Any]:
    return {**_without(test, "estimate"), "difference": test.estimate.value, **test.estimate.interval._asdict()}


def _without(result: object, *names: str) -> dict[str, Any]:
    return {name: value for name, value in vars(result).items() if name not in names}


def _run_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """One row per run and metric."""
    for run in comparison.runs:
        for name, metric in run.metrics.items():
            yield {
                "run": run.name,
                "method": run.method,
                "preset": run.preset,
                "role": comparison.role,
                "metric": name,
                "value_of": HOW["value"],
                "interval_of": metric.how if is_at_edge(metric) else HOW["interval"],
                **metric.with_sd(),
                "sd_folds": metric.sd_folds,
                "seeds": len(run.seeds),
                "folds": comparison.n_folds,
                "slides": comparison.n_slides,
                "patients": comparison.n_patients,
                "unit": comparison.unit,
                "resamples": comparison.resamples,
                "skipped_resamples": comparison.skipped,
            }


def _difference_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """One row per pair, metric and quantity; undefined values are empty."""

    def resampled(estimate: Estimate) -> dict[str, int]:
        return {"resamples": comparison.resamples, "skipped_resamples": estimate.skipped}

    of_ensemble = f"difference of {HOW['ensemble']}"
    for row in comparison.differences:
        pair = {"run": row.run, "reference": row.reference, "metric": row.metric.name, "class": ""}
        yield (
            {**pair, "quantity": "mean over seeds"}
            | _numbers(row.estimate, HOW["difference"], HOW["difference_interval"])
            | {"sd": row.sd, "p_of": HOW["difference_p"], "p": row.p, "p_holm": row.p_holm}
            | {"holm_family": comparison.family, **resampled(row.estimate)}
        )
        if (ensemble := row.ensemble) is not None:
            yield (
                {**pair, "quantity": "seed ensemble"}
                | _numbers(ensemble.estimate, of_ensemble, HOW["ensemble_interval"])
                | {"p_of": ensemble.test, "p": ensemble.p, "p_holm": ensemble.p_holm}
                | {"holm_family": comparison.ensemble_family, **resampled(ensemble.estimate)}
            )
        for tested in row.classes:
            yield (
                {**pair, "metric": "auc", "class": tested.name, "quantity": "seed ensemble"}
                | _numbers(Estimate(tested.difference, tested.interval), of_ensemble, "DeLong")
                | {"p_of": "DeLong, Holm over classes", "p": tested.p, "p_holm": tested.p_holm}
                | {"holm_family": len(row.classes)}
            )
        if (folds := row.folds) is not None:
            yield (
                {**pair, "quantity": "mean over folds"}
                | _numbers(folds.estimate, HOW["folds"], HOW["folds_interval"])
                | {"p_of": "corrected resampled t-test", "p": folds.p}
                | {"folds": len(folds.differences), "t_folds": folds.t}
            )
        if (seeds := row.per_seed) is not None:
            combined = f"one test per pair of seeds, combined: {seeds.rule}"
            each = " ".join(f"{p:.6g}" for p in seeds.p)
            yield {**pair, "quantity": "pairs of seeds", "p_of": combined, "p": seeds.p_combined, "p_seeds": each}


def _numbers(estimate: Estimate, what: str, interval: str) -> dict[str, Any]:
    how = estimate.how if is_at_edge(estimate) else interval
    return {"difference": estimate.value, "difference_of": what, **estimate.interval._asdict(), "interval_of": how}
