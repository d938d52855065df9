"""A comparison as a document, and its files: a page for people, tables for papers and programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asmil.evaluation.comparison.captions import (
    BOLD_IS_NO_TEST,
    DIFFERENCE_INTERVAL_IS,
    DIFFERENCE_IS,
    ENSEMBLE_IS,
    INTERVAL_IS,
    VALUE_IS,
    reading_of,
)
from asmil.evaluation.comparison.findings import ClassAuc, Comparison, Difference, EnsembleTest
from asmil.evaluation.comparison.forest import forest_figure
from asmil.evaluation.run_evaluation import PART_TITLES
from asmil.files import write_json, write_text
from asmil.reporting import (
    Block,
    Cell,
    Document,
    Estimate,
    Figure,
    Note,
    Row,
    Section,
    Table,
    csv_text,
    estimate_cell,
    jsonable,
    latex_document,
    markdown_document,
)
from asmil.reporting.formats import (
    format_count,
    format_number,
    format_p,
    format_signed,
    format_signed_interval,
)
from asmil.reporting.page import html_document

MOST_IN_ANSWER = 2


def write_comparison(found: Comparison, folder: Path | str) -> Path:
    """Write `comparison.{csv,json,md,tex,html}` and `differences.csv`; return the path of the page."""
    folder, document = Path(folder), comparison_document(found)
    write_json(folder / "comparison.json", comparison_to_dict(found))
    write_text(folder / "comparison.csv", csv_text(list(_run_rows(found))))
    write_text(folder / "differences.csv", csv_text(list(_difference_rows(found))))
    write_text(folder / "comparison.md", markdown_document(document))
    write_text(folder / "comparison.tex", latex_document(document, [runs_table(found), differences_table(found)]))
    write_text(folder / "comparison.html", html_document(document))
    return folder / "comparison.html"


def comparison_document(found: Comparison) -> Document:
    """What the report says."""
    note = "Intervals come from draws of seeds and patients; those in blue exclude 0."
    blocks: list[Block] = [Figure(forest_figure(found), "Differences with intervals", note), differences_table(found)]
    sections = [Section("Runs", [runs_table(found)]), Section("Differences", blocks)]
    classes = _classes_table(found)
    if classes.rows:
        sections.append(Section("Classes", [classes]))
    if found.problems:
        sections.append(Section("Runs that were left out", [Note(problem) for problem in found.problems]))
    against = "" if found.reference is None else f" Reference: {found.reference}."
    return Document(
        kind="Comparison",
        title=f"{len(found.runs)} runs",
        answer=_answer(found),
        about=f"On the {PART_TITLES[found.role]}: {sizes_of(found)}.{against}",
        warnings=list(_warnings(found)),
        sections=sections,
        reading=list(reading_of(found)),
    )


def sizes_of(found: Comparison) -> str:
    """What the runs were compared on, in words."""
    patients = format_count(found.n_patients, "patient")
    by_patient = found.unit == "patient" or found.task.by_patient
    slides = "" if by_patient else f"{format_count(found.n_slides, 'slide')} of "
    return f"{slides}{patients}" + (f", {found.n_folds} folds" if found.n_folds > 1 else "")


def runs_table(found: Comparison) -> Table:
    """One row per run with its metrics; the best value of each is bold."""
    rows: list[Row] = [
        [
            Cell(run.name, (f"{run.method}, preset {run.preset}",)),
            *(
                estimate_cell(one, _spread(one), strong=run.name in found.best(metric))
                for metric in found.metrics
                for one in [run.metrics[metric.name]]
            ),
            str(len(run.seeds)),
        ]
        for run in found.runs
    ]
    return Table(
        ["run", *(metric.title for metric in found.metrics), "seeds"],
        rows,
        title=f"{PART_TITLES[found.role]}: {sizes_of(found)}; mean over seeds",
        caption=f"Mean over seeds, 95 % interval of a bootstrap over patients, standard deviation. {BOLD_IS_NO_TEST}",
        in_terminal=True,
        emphasis=True,
    )


def differences_table(found: Comparison) -> Table:
    """One row per pair and metric, with the p-values that there are."""
    tested = any(one.ensemble is not None for one in found.differences)
    folded = any(one.folds is not None for one in found.differences)
    columns = ["run", "reference", "metric", "difference"]
    columns += ["p", f"p (Holm, {found.family})"] if tested else []
    columns += ["p over folds"] if folded else []
    rows: list[Row] = []
    for one in found.differences:
        difference = Cell(
            format_signed(one.value),
            interval=format_signed_interval(one.interval),
            strong=one.interval.excludes_zero,
        )
        cells: list[Cell | str] = [one.run, one.reference, one.metric.title, difference]
        if tested:
            test = () if one.ensemble is None else (one.ensemble.test.partition(",")[0],)
            cells += [Cell(format_p(one.p), notes=test), format_p(one.p_holm)]
        if folded:
            t = math.nan if one.folds is None else one.folds.t
            statistic = () if one.folds is None or math.isnan(t) else (f"|t| = {abs(t):.2f}, df = {one.folds.df}",)
            cells.append(Cell(format_p(one.p_folds), notes=statistic))
        rows.append(cells)
    caption = (
        "Run minus reference, of the means over seeds, with 95 % intervals of a bootstrap over seeds and patients."
    )
    if tested:
        caption += f" p: one test of the {ENSEMBLE_IS}; p (Holm): adjusted over all {found.family}."
    if folded:
        caption += " p over folds: corrected resampled t-test."
    return Table(columns, rows, title="differences: run minus reference", caption=caption, in_terminal=True)


def comparison_to_dict(found: Comparison) -> dict[str, Any]:
    """Everything found, for JSON: undefined numbers are None."""
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
        "how": {
            "value": VALUE_IS,
            "interval": INTERVAL_IS,
            "difference": DIFFERENCE_IS,
            "difference_interval": DIFFERENCE_INTERVAL_IS,
            "ensemble": ENSEMBLE_IS,
        },
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
        "notes": [*reading_of(found), *_warnings(found)],
        "problems": found.problems,
    }
    return dict(jsonable(content))


def _answer(found: Comparison) -> str:
    clear = [one for one in found.differences if one.interval.excludes_zero]
    if not clear:
        return "No clear difference: the 95 % intervals of all differences include 0."
    said = [
        f"{one.run} is {'better' if (one.value > 0) == one.metric.larger_is_better else 'worse'} than {one.reference} "
        f"in {one.metric.title}: {format_signed(one.value)} ({format_signed_interval(one.interval)})"
        for one in clear
    ]
    more = len(said) - MOST_IN_ANSWER
    return "; ".join(said[:MOST_IN_ANSWER]) + (f"; {more} more below." if more > 0 else ".")


def _warnings(found: Comparison) -> Iterator[str]:
    if found.role == "val":
        yield "These are validation slides: if they chose the epoch, all numbers here are optimistic."
    yield from found.warnings
    if found.skipped:
        yield f"{found.skipped} of {found.resamples} draws of patients had no value (a single class) and were left out."


def _spread(estimate: Estimate) -> tuple[str, float]:
    """Over seeds, or over folds if there is one seed."""
    sd = estimate.sd_seeds
    return ("folds", estimate.sd_folds) if math.isnan(sd) else ("seeds", sd)


def _single_classes(one: Difference) -> tuple[ClassAuc, ...]:
    """DeLong's tests of single classes, if there are more than two classes."""
    return one.ensemble.classes if one.ensemble is not None and len(one.ensemble.classes) > 1 else ()


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
        for row in _single_classes(one)
    ]
    caption = f"DeLong's test of each class against the rest, on {ENSEMBLE_IS}."
    return Table(columns, rows, caption=caption)


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
                "value": one.value,
                "value_of": VALUE_IS,
                "low": one.interval.low,
                "high": one.interval.high,
                "interval_of": INTERVAL_IS,
                "sd_seeds": one.sd_seeds,
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
    """One row per pair and metric, then one per class for which DeLong's test was made; undefined is empty."""
    for one in found.differences:
        yield _difference_row(found, one)
        classes = _single_classes(one)
        for row in classes:
            yield {
                "run": one.run,
                "reference": one.reference,
                "measure": "auc",
                "class": row.name,
                "p_of": f"{ENSEMBLE_IS}: DeLong, Holm over classes",
                "ensemble_difference": row.difference,
                "ensemble_low": row.interval.low,
                "ensemble_high": row.interval.high,
                "p": row.p,
                "p_holm": row.p_holm,
                "holm_family": len(classes),
            }


def _difference_row(found: Comparison, one: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": one.run,
        "reference": one.reference,
        "measure": one.metric.name,
        "class": "",
        "difference": one.value,
        "difference_of": DIFFERENCE_IS,
        "low": one.interval.low,
        "high": one.interval.high,
        "sd": one.sd,
        "interval_of": DIFFERENCE_INTERVAL_IS,
        "resamples": found.resamples,
        "skipped_resamples": one.estimate.skipped,
    }
    if one.ensemble is not None:
        row |= {
            "p_of": f"{ENSEMBLE_IS}: {one.ensemble.test}",
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
    classes = [
        {
            "class": one.name,
            "auc": one.auc,
            "auc_reference": one.auc_reference,
            "difference": one.difference,
            **one.interval._asdict(),
            "z": one.z,
            "p": one.p,
            "p_holm": one.p_holm,
        }
        for one in test.classes
    ]
    return {
        "test": test.test,
        "value": test.value,
        "value_reference": test.value_reference,
        "difference": test.difference,
        "p": test.p,
        "classes": classes,
        "reason": test.reason or None,
    }
