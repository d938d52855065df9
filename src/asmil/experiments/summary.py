"""A table of results in short: mean and spread over the trainings of each cohort, variant and point."""

from __future__ import annotations

import pandas as pd

from asmil.reporting import Cell, Table
from asmil.reporting.formats import format_number

SHOWN = 3
"""Columns of numbers that fit into a terminal."""
NUMBERS_FIRST = ("test_auc", "test_f1", "test_c_index", "test_accuracy", "tile_auc", "jsd_late", "effective_share")


def summary_table(results: pd.DataFrame) -> Table:
    """One row for each cohort, variant and point; mean ± standard deviation over folds and seeds."""
    done = results[results["status"] == "done"] if len(results) else results
    varied = varied_columns(results)
    by = ["cohort", "variant", *varied]
    numbers = number_columns(done)[:SHOWN]
    rows = []
    if len(done):
        for key, part in done.groupby(by, dropna=False, sort=False):
            names: list[Cell | str] = [str(one) for one in key]
            rows.append([*names, *(_cell(part[name]) for name in numbers), str(len(part))])
    columns = [*(name.removeprefix("set.") for name in by), *(name.removeprefix("test_") for name in numbers)]
    return Table([*columns, "trainings"], rows, "results", in_terminal=True)


def number_columns(results: pd.DataFrame) -> list[str]:
    """The columns of measured numbers that any training has, the usual ones first."""
    found = [str(name) for name in results.select_dtypes("number") if name not in ("fold", "seed")]
    defined = [name for name in found if results[name].notna().any() and not name.startswith("set.")]
    return [*(name for name in NUMBERS_FIRST if name in defined), *(n for n in defined if n not in NUMBERS_FIRST)]


def varied_columns(results: pd.DataFrame) -> list[str]:
    """The columns of settings that a search varied."""
    return sorted(str(name) for name in results if str(name).startswith("set."))


def _cell(values: pd.Series[float]) -> Cell:
    known = values.dropna()
    if known.empty:
        return Cell("–")
    spread = f" ± {format_number(float(known.std()))}" if len(known) > 1 else ""
    return Cell(f"{format_number(float(known.mean()))}{spread}")
