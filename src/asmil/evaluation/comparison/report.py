"""The report of a comparison: a web page, and tables for papers and programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest, FoldTest
from asmil.evaluation.curves import KINDS, run_curves
from asmil.evaluation.run_evaluation import FEWEST_TO_RANK, PART_TITLES
from asmil.reporting import Block, Cell, Document, Figure, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, problem_sections
from asmil.reporting.drawing import COLORS, EDGE, new_figure, plain_text, svg_text
from asmil.reporting.estimate import TOO_FEW, Estimate, jsonable
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count, format_number, format_p, format_signed, format_signed_interval
from asmil.tasks.base import Metric
from asmil.tasks.intervals import draw_patients, is_at_edge, number_patients

MOST_IN_ANSWER = 2
BAND_DRAWS = 200
LONGEST_NAME = 34
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


def write_comparison(found: Comparison, folder: Path | str) -> Path:
    """Write `comparison.{csv,json,md,tex,html}` and `differences.csv`; return the path of the page."""
    tables = {"comparison": list(_run_rows(found)), "differences": list(_difference_rows(found))}
    latex = [runs_table(found), differences_table(found), *_other_tables(found)]
    page = Path(folder) / "comparison.html"
    return write_document(comparison_document(found), page, comparison_to_dict(found), tables, latex)


def comparison_document(found: Comparison) -> Document:
    """The content of the report."""
    note = "Intervals come from a bootstrap over seeds and patients; blue ones exclude 0."
    blocks: list[Block] = [
        differences_table(found),
        Figure(forest_figure(found), "Differences with intervals", note),
        *_other_tables(found),
    ]
    sections = [Section("Runs", [_in_words(found), runs_table(found), *_curves(found)]), Section("Differences", blocks)]
    classes = _classes_table(found)
    if classes.rows:
        sections.append(Section("Classes", [classes]))
    sections += problem_sections(found.problems, "Runs left out")
    against = "" if found.reference is None else f" Reference: {found.reference}."
    return Document(
        kind="Comparison",
        title=f"{len(found.runs)} runs",
        answer=answer_of(found),
        about=f"On the {PART_TITLES[found.role]}: {sizes_of(found)}.{against}",
        alarms=found.alarms,
        warnings=list(_warnings(found)),
        sections=sections,
        reading=list(_reading(found)),
    )


def sizes_of(found: Comparison) -> str:
    """How many slides and patients the runs were compared on, as text."""
    patients = format_count(found.n_patients, "patient")
    by_patient = found.unit == "patient" or found.task.by_patient
    slides = "" if by_patient else f"{format_count(found.n_slides, 'slide')} of "
    return f"{slides}{patients}" + (f", {found.n_folds} folds" if found.n_folds > 1 else "")


def answer_of(found: Comparison) -> str:
    """The result in one or two sentences, with what speaks against it."""
    return _clear_differences(found) + _opposite_signs(found)


def _opposite_signs(found: Comparison) -> str:
    """Which differences have another sign if another quantity is compared, as a sentence; alarms may hide warnings."""
    said = [words for one in found.differences if (words := one.opposite_words)]
    more = f"; {len(said) - MOST_IN_ANSWER} more below" if len(said) > MOST_IN_ANSWER else ""
    return f" Opposite signs: {'; '.join(said[:MOST_IN_ANSWER])}{more}." if said else ""


def _clear_differences(found: Comparison) -> str:
    clear = [one for one in found.differences if one.interval.excludes_zero]
    too_few = f" {format_count(found.n_patients, 'patient')} are too few to rank methods."
    few = too_few * (found.n_patients < FEWEST_TO_RANK)
    if not clear:
        return "No difference shown: no 95 % interval of a difference excludes 0." + few
    here = "on these patients " * any(map(_may_be_chance, clear))
    said = [
        f"{one.run} is {here}{'better' if (one.value > 0) == one.metric.larger_is_better else 'worse'} than "
        f"{one.reference} in {one.metric.title}: {format_signed(one.value)} ({format_signed_interval(one.interval)})"
        + f", but p is {format_p(one.p_holm)} after correction for {found.family} comparisons"
        * _may_be_chance(one)
        for one in clear
    ]
    more = len(said) - MOST_IN_ANSWER
    return "; ".join(said[:MOST_IN_ANSWER]) + (f"; {more} more below." if more > 0 else ".") + few


def _may_be_chance(one: Difference) -> bool:
    return one.p_holm >= SIGNIFICANT


def _warnings(found: Comparison) -> Iterator[str]:
    if found.role == "val":
        yield "These are validation slides: if the epoch was chosen on them, all numbers here are optimistic."
    yield from found.warnings
    if found.skipped:
        yield f"{found.skipped} of {found.resamples} bootstrap resamples contain a single class and were skipped."


def _has_seeds(found: Comparison) -> bool:
    return any(len(run.seeds) > 1 for run in found.runs)


def runs_table(found: Comparison) -> Table:
    """One row per run; a value is bold if it is the best and the interval of a difference excludes 0."""
    rows: list[Row] = [
        [
            Cell(run.name, (f"{run.method}, preset {run.preset}",)),
            *(
                estimate_cell(one, _spread(one), strong=_is_shown_best(found, run.name, metric))
                for metric in found.metrics
                for one in [run.metrics[metric.name]]
            ),
            str(len(run.seeds)),
        ]
        for run in found.runs
    ]
    mean = "Mean over seeds" if _has_seeds(found) else "One training per fold"
    over_seeds = "; mean over seeds" * _has_seeds(found)
    return Table(
        ["run", *(metric.title for metric in found.metrics), "seeds"],
        rows,
        title=f"{PART_TITLES[found.role]}: {sizes_of(found)}{over_seeds}",
        caption=f"{mean}, 95 % patient-level bootstrap interval, standard deviation (sd). Bold: best, and the interval "
        "of a difference excludes 0.",
        in_terminal=True,
        emphasis=True,
    )


def _in_words(found: Comparison) -> str:
    """The errors of each run, in one paragraph; each slide is counted once, by its mean prediction."""
    assert found.task.in_words is not None
    said = []
    for run in found.runs:
        rows, predictions = found.paired.rows.by_slide(found.paired.runs[run.name].predictions.mean(axis=0))
        values = {name: one.value for name, one in run.metrics.items()}
        said.append(f"{run.name} {found.task.in_words(rows.truth, predictions, values, found.unit)}.")
    several = _has_seeds(found) or found.paired.rows.folds_overlap
    averaged = "With the predictions of its trainings averaged: " * (several and found.task.are_probabilities)
    return averaged + " ".join(said)


def _is_shown_best(found: Comparison, run: str, metric: Metric) -> bool:
    about = [one for one in found.differences if one.metric == metric and run in (one.run, one.reference)]
    return run in found.best(metric) and any(one.interval.excludes_zero for one in about)


def _spread(estimate: Estimate) -> tuple[str, float]:
    """Over seeds, or over folds if there is one seed."""
    sd = estimate.sd_seeds
    return ("folds", estimate.sd_folds) if math.isnan(sd) else ("seeds", sd)


def differences_table(found: Comparison) -> Table:
    """The differences of the means over seeds, one row per pair and metric, with interval and p-values."""
    rows: list[Row] = [
        [
            one.run,
            one.reference,
            one.metric.title,
            _difference_cell(one.estimate),
            format_p(one.p),
            format_p(one.p_holm),
        ]
        for one in found.differences
    ]
    of = "of the means over seeds" if _has_seeds(found) else ""
    caption = (
        f"Run minus reference{', ' * bool(of)}{of}. Interval and p come from one bootstrap over seeds and patients; p "
        f"(Holm) is adjusted over all {found.family}."
    )
    columns = ["run", "reference", "metric", "difference", "p", f"p (Holm, {found.family})"]
    title = " ".join(filter(None, ["differences", of])) + ": run minus reference"
    return Table(columns, rows, title=title, caption=caption, in_terminal=True)


def _other_tables(found: Comparison) -> list[Table]:
    """Differences of other quantities, each with its own interval and p-value: seed ensembles, means over folds."""
    return [table for table in (_ensembles_table(found), _folds_table(found)) if table.rows]


def _ensembles_table(found: Comparison) -> Table:
    rows: list[Row] = [
        [
            one.run,
            one.reference,
            one.metric.title,
            _difference_cell(test.estimate),
            test.test.partition(" ")[0],
            format_p(test.p),
            format_p(test.p_holm),
        ]
        for one in found.differences
        if (test := one.ensemble) is not None
    ]
    what = "seed ensembles" if _has_seeds(found) else "trained models"
    averaged = f" ({HOW['ensemble']})" * _has_seeds(found)
    caption = (
        f"Run minus reference, of the {what}{averaged}. Intervals come from a bootstrap "
        f"over patients, p from the named test; p (Holm) is adjusted over all {found.ensemble_family}."
    )
    columns = ["run", "reference", "metric", "difference", "test", "p", f"p (Holm, {found.ensemble_family})"]
    tests = ", ".join(dict.fromkeys(str(row[4]) for row in rows))
    title = f"differences of the {what}: run minus reference, tests: {tests}"
    return Table(columns, rows, title=title, caption=caption, in_terminal=True, narrow=frozenset({"test"}))


def _folds_table(found: Comparison) -> Table:
    rows: list[Row] = [
        [
            one.run,
            one.reference,
            one.metric.title,
            _difference_cell(test.estimate),
            Cell(format_p(test.p), notes=() if math.isnan(test.t) else (f"|t| = {abs(test.t):.2f}, df = {test.df}",)),
        ]
        for one in found.differences
        if (test := one.folds) is not None
    ]
    caption = (
        "Run minus reference in each fold, mean over folds, with interval and p of the corrected resampled t-test."
    )
    return Table(
        ["run", "reference", "metric", "difference", "p"], rows, title="differences over folds", caption=caption
    )


def _difference_cell(estimate: Estimate) -> Cell:
    few = estimate.how == TOO_FEW
    interval = "too few to say" if few else format_signed_interval(estimate.interval)
    return Cell(format_signed(estimate.value), interval=interval, strong=estimate.interval.excludes_zero)


def _classes_table(found: Comparison) -> Table:
    columns = ["run", "reference", "class", "AUC", "AUC of reference", "difference", "p", "p (Holm over classes)"]
    rows: list[Row] = [
        [
            one.run,
            one.reference,
            row.name,
            format_number(row.auc),
            format_number(row.auc_reference),
            Cell(format_signed(row.difference), interval=format_signed_interval(row.interval)),
            format_p(row.p),
            format_p(row.p_holm),
        ]
        for one in found.differences
        for row in one.classes
    ]
    return Table(columns, rows, caption=f"DeLong's test of each class against the rest, on {HOW['ensemble']}.")


def _curves(found: Comparison) -> list[Block]:
    """ROC and precision-recall curves, each with all runs in one figure; empty if the task has no such curves."""
    rows = found.paired.rows
    if not found.task.part_metrics:
        return []
    patients = number_patients(rows.patients.tolist())
    draws = draw_patients(found.n_patients, min(BAND_DRAWS, found.resamples), found.bootstrap_seed)
    weights = draws[:, patients].astype(np.float64)
    labels = [1] if found.task.has_threshold else range(len(found.task.names))
    runs = {name: run.predictions for name, run in found.paired.runs.items()}
    present = found.task.memberships(rows.truth)
    figures = [
        Figure(run_curves(kind, present, found.task.known(rows.truth), runs, weights, labels), kind.title)
        for kind in KINDS
    ]
    caption = f"Bands: 95 % of {len(weights)} bootstrap resamples of patients." + (
        f" Each curve is the mean over the {found.task.part_name} curves." * (len(labels) > 1)
    )
    return [SideBySide(figures), caption] if any(figure.content for figure in figures) else []


def forest_figure(found: Comparison) -> str:
    """Differences (run minus reference) as dots, 95 % intervals as lines; one panel per metric."""
    n_pairs = len(found.differences) // len(found.metrics)
    height = 1.1 + 0.4 * n_pairs
    with new_figure(5.6, height * len(found.metrics), axes_grid_axis="x", axes_spines_left=False) as figure:
        panels = figure.subplots(len(found.metrics), 1, squeeze=False)[:, 0]
        for axes, metric in zip(panels, found.metrics, strict=True):
            _draw_differences(axes, metric, [one for one in found.differences if one.metric == metric])
        return svg_text(figure)


def _draw_differences(axes: Axes, metric: Metric, differences: list[Difference]) -> None:
    axes.axvline(0, color=EDGE, linewidth=1, linestyle="--")
    for place, one in enumerate(differences):
        color = COLORS[0] if one.interval.excludes_zero else EDGE
        axes.plot(list(one.interval), [place, place], color=color, linewidth=2.2, solid_capstyle="round")
        axes.plot(one.value, place, "o", color=color, markersize=6)
    names = [f"{_short(one.run)} − {_short(one.reference)}" for one in differences]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    better = "larger is better" if metric.larger_is_better else "smaller is better"
    axes.set(title=plain_text(metric.title), xlabel=f"difference ({better})")


def _short(name: str) -> str:
    return plain_text(name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}")


def _reading(found: Comparison) -> Iterator[str]:
    """How every number is computed from seeds, folds and patients."""
    titles = " and ".join(metric.title for metric in found.metrics)
    if found.n_folds == 1:
        folds = f" on the {PART_TITLES[found.role]}"
    elif found.folds_joined:
        folds = f" on the {PART_TITLES[found.role]}s of the {found.n_folds} folds, joined for each seed"
    else:
        folds = f", the mean over the {PART_TITLES[found.role]}s of {found.n_folds} folds"
    seeds = ", averaged over seeds" * _has_seeds(found)
    yield (
        f"Values: {titles}{folds}{seeds}. Intervals are 95 % percentile intervals of {found.resamples} bootstrap "
        "resamples of patients, each with all its slides; sd is the standard deviation over seeds, or over folds if "
        "there is one seed."
    )
    yield (
        "Differences of the means over seeds: run minus reference. Their interval and p show whether one method is "
        "better than the other on new patients: seeds are resampled for each run separately, patients jointly for "
        f"both. An interval that excludes 0 is evidence of a difference. p (Holm) is adjusted over all {found.family} "
        "p-values of this table; intervals are not adjusted for multiple comparisons."
    )
    tests = [one.ensemble for one in found.differences if one.ensemble is not None]
    if tests:
        auc = (
            "DeLong's test" if found.task.has_threshold else "a bootstrap over patients (DeLong's test per class below)"
        )
        yield (
            "Differences of the seed ensembles are another quantity, with its own interval and p: probabilities are "
            f"averaged over seeds first. macro-AUC is tested by {auc}, macro-F1 by a permutation test that swaps the "
            f"predicted classes of whole patients. p (Holm) is adjusted over all {found.ensemble_family} p-values of "
            "this table. Decide beforehand which table you report."
        )
    if any(one.per_seed is not None for one in found.differences):
        yield (
            "The p-values of single seeds are in the JSON and CSV files. They are combined as twice their median, "
            "which is valid under any dependence."
        )
    if found.n_folds > 1:
        yield (
            "Differences over folds are means of the folds' differences, with the interval and p of the corrected "
            "resampled t-test (Nadeau and Bengio), which accounts for overlapping training sets. They are not adjusted "
            "for multiple comparisons."
        )


def comparison_to_dict(found: Comparison) -> dict[str, Any]:
    """All results, ready for JSON; undefined numbers are None."""
    content = {
        "task": found.task.kind,
        "role": found.role,
        "unit": found.unit,
        "slides": found.n_slides,
        "patients": found.n_patients,
        "folds": found.n_folds,
        "folds_joined": found.folds_joined,
        "reference": found.reference,
        "bootstrap": {
            "resamples": found.resamples,
            "skipped": found.skipped,
            "seed": found.bootstrap_seed,
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
                "metrics": {name: one.to_dict("seeds", "folds") for name, one in run.metrics.items()},
            }
            for run in found.runs
        ],
        "differences": [_difference_to_dict(one) for one in found.differences],
        "holm_family": found.family,
        "ensemble_holm_family": found.ensemble_family,
        "notes": [*_reading(found), *_warnings(found)],
        "problems": found.problems,
    }
    return dict(jsonable(content))


def _difference_to_dict(one: Difference) -> dict[str, Any]:
    return {
        "run": one.run,
        "reference": one.reference,
        "metric": one.metric.name,
        "difference": one.value,
        **one.interval._asdict(),
        "sd": one.sd,
        "skipped": one.estimate.skipped,
        "p": one.p,
        "ensemble": None if one.ensemble is None else _ensemble_to_dict(one.ensemble),
        "p_holm": one.p_holm,
        "folds": None if one.folds is None else _folds_to_dict(one.folds),
        "per_seed": one.per_seed,
    }


def _ensemble_to_dict(test: EnsembleTest) -> dict[str, Any]:
    classes = []
    for one in test.classes:
        numbers = {name: value for name, value in vars(one).items() if name not in ("name", "interval")}
        classes.append({"class": one.name, **numbers, **one.interval._asdict()})
    numbers = {name: value for name, value in vars(test).items() if name != "estimate"}
    found = {"difference": test.difference, **test.estimate.interval._asdict()}
    return {**numbers, **found, "classes": classes, "reason": test.reason or None}


def _folds_to_dict(test: FoldTest) -> dict[str, Any]:
    numbers = {name: value for name, value in vars(test).items() if name != "estimate"}
    return {**numbers, "difference": test.estimate.value, **test.estimate.interval._asdict()}


def _run_rows(found: Comparison) -> Iterator[dict[str, Any]]:
    """One row per run and metric."""
    for run in found.runs:
        for name, one in run.metrics.items():
            yield {
                "run": run.name,
                "method": run.method,
                "preset": run.preset,
                "role": found.role,
                "metric": name,
                "value_of": HOW["value"],
                "interval_of": one.how if is_at_edge(one) else HOW["interval"],
                **one.with_sd(),
                "sd_folds": one.sd_folds,
                "seeds": len(run.seeds),
                "folds": found.n_folds,
                "slides": found.n_slides,
                "patients": found.n_patients,
                "unit": found.unit,
                "resamples": found.resamples,
                "skipped_resamples": found.skipped,
            }


def _difference_rows(found: Comparison) -> Iterator[dict[str, Any]]:
    """One row per pair, metric and quantity; undefined values are empty."""
    for one in found.differences:
        pair = {"run": one.run, "reference": one.reference, "metric": one.metric.name, "class": ""}
        yield {
            **pair,
            "quantity": "mean over seeds",
            **_numbers(one.estimate, HOW["difference"], HOW["difference_interval"]),
            "sd": one.sd,
            "p_of": HOW["difference_p"],
            "p": one.p,
            "p_holm": one.p_holm,
            "holm_family": found.family,
            "resamples": found.resamples,
            "skipped_resamples": one.estimate.skipped,
        }
        if one.ensemble is not None:
            yield {
                **pair,
                "quantity": "seed ensemble",
                **_numbers(one.ensemble.estimate, f"difference of {HOW['ensemble']}", HOW["ensemble_interval"]),
                "p_of": one.ensemble.test,
                "p": one.ensemble.p,
                "p_holm": one.ensemble.p_holm,
                "holm_family": found.ensemble_family,
                "resamples": found.resamples,
                "skipped_resamples": one.ensemble.estimate.skipped,
            }
        for row in one.classes:
            yield {
                **pair,
                "metric": "auc",
                "class": row.name,
                "quantity": "seed ensemble",
                **_numbers(Estimate(row.difference, row.interval), f"difference of {HOW['ensemble']}", "DeLong"),
                "p_of": "DeLong, Holm over classes",
                "p": row.p,
                "p_holm": row.p_holm,
                "holm_family": len(one.classes),
            }
        if one.folds is not None:
            yield {
                **pair,
                "quantity": "mean over folds",
                **_numbers(one.folds.estimate, HOW["folds"], HOW["folds_interval"]),
                "p_of": "corrected resampled t-test",
                "p": one.folds.p,
                "folds": len(one.folds.differences),
                "t_folds": one.folds.t,
            }
        if one.per_seed is not None:
            yield {
                **pair,
                "quantity": "pairs of seeds",
                "p_of": f"one test per pair of seeds, combined: {one.per_seed.rule}",
                "p": one.per_seed.p_combined,
                "p_seeds": " ".join(f"{p:.6g}" for p in one.per_seed.p),
            }


def _numbers(estimate: Estimate, what: str, interval: str) -> dict[str, Any]:
    how = estimate.how if is_at_edge(estimate) else interval
    return {
        "difference": estimate.value,
        "difference_of": what,
        **estimate.interval._asdict(),
        "interval_of": how,
    }
