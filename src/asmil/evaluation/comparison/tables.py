"""A comparison as rows: for CSV and Markdown."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.comparison.findings import Comparison, Difference, Method, Score
from asmil.evaluation.comparison.words import (
    BOLD_IS_NO_TEST,
    DIFFERENCE_INTERVAL_IS,
    DIFFERENCE_IS,
    ENSEMBLE_IS,
    INTERVAL_IS,
    VALUE_IS,
    notes_of,
)
from asmil.evaluation.tables import format_interval, format_number, markdown_cell, markdown_table


def format_p(p: float) -> str:
    """A p-value; an undefined one as a dash."""
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_difference(value: float) -> str:
    """A difference with its sign."""
    return "–" if math.isnan(value) else f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def format_difference_interval(interval: Interval) -> str:
    """Both ends with their signs."""
    return (
        "–" if math.isnan(interval.low) else f"{format_difference(interval.low)} to {format_difference(interval.high)}"
    )


def spread_of(score: Score) -> tuple[str, float]:
    """What the standard deviation is over, and its value: seeds, or folds where there is one seed."""
    return ("seeds", score.sd_seeds) if not math.isnan(score.sd_seeds) else ("folds", score.sd_folds)


def format_sizes(found: Comparison) -> str:
    """How much was judged."""
    slides = "" if found.unit == "patient" or found.kind == "survival" else f"{found.n_slides} slides of "
    folds = f", {found.n_folds} folds" if found.n_folds > 1 else ""
    return f"{slides}{found.n_patients} patients{folds}"


def methods_frame(found: Comparison) -> pd.DataFrame:
    """One row a run and measure."""
    rows = [
        _method_row(found, method, name, score) for method in found.methods for name, score in method.scores.items()
    ]
    return pd.DataFrame(rows)


def differences_frame(found: Comparison) -> pd.DataFrame:
    """One row a pair and measure, then one a class where DeLong's test was made for each; undefined is empty."""
    rows = []
    for one in found.differences:
        rows.append(_difference_row(found, one))
        classes = one.ensemble.classes if one.ensemble is not None and len(one.ensemble.classes) > 1 else ()
        rows += [
            {
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
            for row in classes
        ]
    table = pd.DataFrame(rows)
    counts = [name for name in ("resamples", "skipped_resamples", "holm_family", "folds") if name in table]
    return table.astype(dict.fromkeys(counts, "Int64"))


def markdown_report(found: Comparison) -> str:
    """The tables and notes as Markdown."""
    parts = ["# Comparison", "", f"On the {found.role} part: {format_sizes(found)}.", "", _markdown_methods(found), ""]
    parts += [BOLD_IS_NO_TEST, "", "## Differences", "", _markdown_differences(found), ""]
    parts += ["## How to read these numbers", "", *[f"- {markdown_cell(note)}" for note in notes_of(found)]]
    if found.problems:
        parts += ["", "## Runs that were left out", "", *[f"- {markdown_cell(text)}" for text in found.problems]]
    return "\n".join(parts) + "\n"


def _method_row(found: Comparison, method: Method, measure: str, score: Score) -> dict[str, Any]:
    return {
        "run": method.name,
        "method": method.method,
        "preset": method.preset,
        "role": found.role,
        "measure": measure,
        "value": score.value,
        "value_of": VALUE_IS,
        "low": score.interval.low,
        "high": score.interval.high,
        "interval_of": INTERVAL_IS,
        "sd_seeds": score.sd_seeds,
        "sd_folds": score.sd_folds,
        "seeds": len(method.seeds),
        "folds": found.n_folds,
        "slides": found.n_slides,
        "patients": found.n_patients,
        "unit": found.unit,
        "resamples": found.resamples,
        "skipped_resamples": found.skipped,
    }


def _difference_row(found: Comparison, one: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": one.run,
        "reference": one.reference,
        "measure": one.measure.name,
        "class": "",
        "difference": one.value,
        "difference_of": DIFFERENCE_IS,
        "low": one.interval.low,
        "high": one.interval.high,
        "sd": one.sd,
        "interval_of": DIFFERENCE_INTERVAL_IS,
        "resamples": found.resamples,
        "skipped_resamples": one.skipped,
    }
    if one.ensemble is not None:
        row |= {
            "p_of": f"{ENSEMBLE_IS}: {one.ensemble.test}",
            "ensemble_difference": one.ensemble.difference,
            "p": one.ensemble.p,
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


def _markdown_methods(found: Comparison) -> str:
    header = ["run", "method", *(measure.title for measure in found.measures), "seeds"]
    rows = []
    for method in found.methods:
        values = []
        for measure in found.measures:
            score = method.scores[measure.name]
            value = format_number(score.value)
            value = f"**{value}**" if method.name in found.best(measure) else value
            over, sd = spread_of(score)
            spread = "" if math.isnan(sd) else f", sd over {over} {format_number(sd)}"
            values.append(f"{value} ({format_interval(score.interval)}){spread}")
        rows.append([method.name, method.method, *values, str(len(method.seeds))])
    return markdown_table(header, rows)


def _markdown_differences(found: Comparison) -> str:
    tested = any(one.ensemble is not None for one in found.differences)
    folded = any(one.folds is not None for one in found.differences)
    header = ["run", "reference", "measure", "difference", "95 % interval"]
    header += ["p", f"p (Holm, {found.family})"] if tested else []
    header += ["p over folds"] if folded else []
    rows = []
    for one in found.differences:
        row = [one.run, one.reference, one.measure.title, format_difference(one.value)]
        row.append(format_difference_interval(one.interval))
        if tested:
            row += [format_p(math.nan if one.ensemble is None else one.ensemble.p), format_p(one.p_holm)]
        if folded:
            row.append(format_p(math.nan if one.folds is None else one.folds.p))
        rows.append(row)
    return markdown_table(header, rows)
