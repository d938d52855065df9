"""The report of a comparison: a web page, and tables for papers and programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest
from asmil.evaluation.curves import KINDS, run_curves
from asmil.evaluation.evaluate import FEW_PATIENTS, PART_TITLES
from asmil.reporting import Block, Cell, Document, Figure, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, problem_sections
from asmil.reporting.drawing import COLORS, EDGE, new_figure, plain_text, svg_text
from asmil.reporting.estimate import Estimate, jsonable
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count, format_number, format_p, format_signed, format_signed_interval
from asmil.tasks.bootstrap import draw_patients, number_patients
from asmil.tasks.prediction_format import Metric

MOST_IN_ANSWER = 2
BAND_DRAWS = 200
LONGEST_NAME = 34
HOW = {
    "value": "mean over seeds",
    "interval": "95 % percentile interval of a bootstrap over patients",
    "difference": "difference of the means over seeds",
    "difference_interval": "95 % percentile interval of a bootstrap over seeds (per run) and patients (same for both)",
    "ensemble": "probabilities averaged over seeds",
}
"""Definitions of the numbers, for result files and captions."""


def write_comparison(found: Comparison, folder: Path | str) -> Path:
    """Write `comparison.{csv,json,md,tex,html}` and `differences.csv`; return the path of the page."""
    tables = {"comparison": list(_run_rows(found)), "differences": list(_difference_rows(found))}
    latex = [runs_table(found), differences_table(found)]
    page = Path(folder) / "comparison.html"
    return write_document(comparison_document(found), page, comparison_to_dict(found), tables, latex)


def comparison_document(found: Comparison) -> Document:
    """The content of the report."""
    note = "Intervals come from a bootstrap over seeds and patients; blue ones exclude 0."
    blocks: list[Block] = [differences_table(found), Figure(forest_figure(found), "Differences with intervals", note)]
    sections = [Section("Runs", [_in_words(found), runs_table(found), *_curves(found)]), Section("Differences", blocks)]
    classes = _classes_table(found)
    if classes.rows:
        sections.append(Section("Classes", [classes]))
    sections += problem_sections(found.problems, "Runs left out")
    against = "" if found.reference is None else f" Reference: {found.reference}."
    return Document(
        kind="Comparison",
        title=f"{len(found.runs)} runs",
        answer=_answer(found),
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


def _answer(found: Comparison) -> str:
    clear = [one for one in found.differences if one.interval.excludes_zero]
    few = found.n_patients < FEW_PATIENTS
    if not clear:
        return "No difference shown: the 95 % intervals of all differences include 0." + (
            f" {format_count(found.n_patients, 'patient')} are too few to rank methods." * few
        )
    said = [
        f"{one.run} is {'better' if (one.value > 0) == one.metric.larger_is_better else 'worse'} than {one.reference} "
        f"in {one.metric.title}: {format_signed(one.value)} ({format_signed_interval(one.interval)})"
        for one in clear
    ]
    more = len(said) - MOST_IN_ANSWER
    return "; ".join(said[:MOST_IN_ANSWER]) + (f"; {more} more below." if more > 0 else ".")


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
    return Table(
        ["run", *(metric.title for metric in found.metrics), "seeds"],
        rows,
        title=f"{PART_TITLES[found.role]}: {sizes_of(found)}",
        caption=f"{mean}, 95 % patient-level bootstrap interval, standard deviation (sd). Bold: best, and the interval "
        "of a difference excludes 0.",
        in_terminal=True,
        emphasis=True,
    )


def _in_words(found: Comparison) -> str:
    """The errors of each run, in one paragraph."""
    assert found.task.in_words is not None
    said = []
    for run in found.runs:
        predictions = found.paired.runs[run.name].predictions.mean(axis=0)
        values = {name: one.value for name, one in run.metrics.items()}
        said.append(f"{run.name} {found.task.in_words(found.paired.rows.truth, predictions, values)}.")
    averaged = "Predictions averaged over seeds: " * (_has_seeds(found) and found.task.are_probabilities)
    return averaged + " ".join(said)


def _is_shown_best(found: Comparison, run: str, metric: Metric) -> bool:
    about = [one for one in found.differences if one.metric == metric and run in (one.run, one.reference)]
    return run in found.best(metric) and any(one.interval.excludes_zero for one in about)


def _spread(estimate: Estimate) -> tuple[str, float]:
    """Over seeds, or over folds if there is one seed."""
    sd = estimate.sd_seeds
    return ("folds", estimate.sd_folds) if math.isnan(sd) else ("seeds", sd)


def differences_table(found: Comparison) -> Table:
    """One row per pair and metric, with the available p-values."""
    tested = any(one.ensemble is not None for one in found.differences)
    folded = any(one.folds is not None for one in found.differences)
    columns = ["run", "reference", "metric", "difference"]
    columns += ["p", f"p (Holm, {found.family})"] if tested else []
    columns += ["p over folds"] if folded else []
    rows: list[Row] = []
    for one in found.differences:
        interval = format_signed_interval(one.interval)
        difference = Cell(format_signed(one.value), interval=interval, strong=one.interval.excludes_zero)
        cells: list[Cell | str] = [one.run, one.reference, one.metric.title, difference]
        if tested:
            test = () if one.ensemble is None else (one.ensemble.test.partition(",")[0],)
            cells += [Cell(format_p(one.p), notes=test), format_p(one.p_holm)]
        if folded:
            test = ()
            if one.folds is not None and not math.isnan(one.folds.t):
                test = (f"|t| = {abs(one.folds.t):.2f}, df = {one.folds.df}",)
            cells.append(Cell(format_p(math.nan if one.folds is None else one.folds.p), notes=test))
        rows.append(cells)
    caption = "Run minus reference, with 95 % bootstrap intervals over seeds and patients."
    if tested:
        caption += f" p: one test of the {HOW['ensemble']}; p (Holm): adjusted over all {found.family}."
    if folded:
        caption += " p over folds: corrected resampled t-test."
    return Table(columns, rows, title="differences: run minus reference", caption=caption, in_terminal=True)


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
        "Differences: run minus reference. Their interval shows whether one method is better than the other on new "
        "patients: seeds are resampled for each run separately, patients jointly for both. An interval that excludes "
        "0 is evidence of a difference. Intervals are not adjusted for multiple comparisons."
    )
    tests = [one.ensemble for one in found.differences if one.ensemble is not None]
    if tests:
        classes = any("per class" in test.test for test in tests)
        delong = "DeLong's test" + " of every class (the smallest Holm-adjusted p-value is shown)" * classes
        yield (
            f"p tests whether the seed ensembles differ: macro-AUC by {delong}, macro-F1 by a permutation test that "
            "swaps the predicted classes of whole patients. p (Holm) is adjusted over all "
            f"{found.family} p-values here."
        )
    if any(one.per_seed is not None for one in found.differences):
        yield (
            "The p-values of single seeds are in the JSON and CSV files. They are combined as twice their median, "
            "which is valid under any dependence."
        )
    if found.n_folds > 1:
        yield (
            "p over folds comes from the corrected resampled t-test (Nadeau and Bengio), which accounts for "
            "overlapping training sets. It is not adjusted for multiple comparisons."
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
        "methods": [
            {
                "name": run.name,
                "run": run.path,
                "method": run.method,
                "preset": run.preset,
                "seeds": run.seeds,
                "measures": {name: one.to_dict("seeds", "folds") for name, one in run.metrics.items()},
            }
            for run in found.runs
        ],
        "differences": [_difference_to_dict(one) for one in found.differences],
        "holm_family": found.family,
        "notes": [*_reading(found), *_warnings(found)],
        "problems": found.problems,
    }
    return dict(jsonable(content))


def _difference_to_dict(one: Difference) -> dict[str, Any]:
    return {
        "run": one.run,
        "reference": one.reference,
        "measure": one.metric.name,
        "difference": one.value,
        **one.interval._asdict(),
        "sd": one.sd,
        "skipped": one.estimate.skipped,
        "ensemble": None if one.ensemble is None else _ensemble_to_dict(one.ensemble),
        "p_holm": one.p_holm,
        "folds": one.folds,
        "per_seed": one.per_seed,
    }


def _ensemble_to_dict(test: EnsembleTest) -> dict[str, Any]:
    classes = []
    for one in test.classes:
        numbers = {name: value for name, value in vars(one).items() if name not in ("name", "interval")}
        classes.append({"class": one.name, **numbers, **one.interval._asdict()})
    return {**vars(test), "difference": test.difference, "classes": classes, "reason": test.reason or None}


def _run_rows(found: Comparison) -> Iterator[dict[str, Any]]:
    """One row per run and metric."""
    for run in found.runs:
        for name, one in run.metrics.items():
            yield {
                "run": run.name,
                "method": run.method,
                "preset": run.preset,
                "role": found.role,
                "measure": name,
                "value_of": HOW["value"],
                "interval_of": HOW["interval"],
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
    """One row per pair and metric, then one per class tested by DeLong's test; undefined values are empty."""
    for one in found.differences:
        yield _difference_row(found, one)
        for row in one.classes:
            yield {
                "run": one.run,
                "reference": one.reference,
                "measure": "auc",
                "class": row.name,
                "p_of": f"{HOW['ensemble']}: DeLong, Holm over classes",
                "ensemble_difference": row.difference,
                "ensemble_low": row.interval.low,
                "ensemble_high": row.interval.high,
                "p": row.p,
                "p_holm": row.p_holm,
                "holm_family": len(one.classes),
            }


def _difference_row(found: Comparison, one: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": one.run,
        "reference": one.reference,
        "measure": one.metric.name,
        "class": "",
        "difference": one.value,
        "difference_of": HOW["difference"],
        **one.interval._asdict(),
        "sd": one.sd,
        "interval_of": HOW["difference_interval"],
        "resamples": found.resamples,
        "skipped_resamples": one.estimate.skipped,
    }
    if one.ensemble is not None:
        row |= {
            "p_of": f"{HOW['ensemble']}: {one.ensemble.test}",
            "ensemble_difference": one.ensemble.difference,
            "p": one.p,
            "p_holm": one.p_holm,
            "holm_family": found.family,
        }
    if one.folds is not None:
        row |= {"folds": len(one.folds.differences), "t_folds": one.folds.t, "p_folds": one.folds.p}
    if one.per_seed is not None:
        row |= {
            "p_seeds": " ".join(f"{p:.6g}" for p in one.per_seed.p),
            "p_seeds_combined": one.per_seed.p_combined,
            "p_seeds_rule": one.per_seed.rule,
        }
    return row
