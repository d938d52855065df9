"""The study on real tissue (plan: studies/real_tissue.md): records from finished sweeps, and the tables of its page.

    asmil datasets tcga-hipt --from DOWNLOADED --out cohorts/tcga-hipt          (and colon)
    asmil sweep studies/real_subtyping.yaml --out runs/real_subtyping          (and the other real_*.yaml)
    python benchmarks/real_tissue.py record runs/real_* --out docs/results/real_tissue
    python benchmarks/real_tissue.py page docs/results/real_tissue --page docs/real_tissue.md

A record is a table with one row per cohort and variant: the score with its interval, and the difference to the
reference (`abmil`, or its form without anchor) with interval and p-value, Holm's over the variants of the cohort.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.evaluation import compare_runs
from asmil.evaluation.statistics import holm
from asmil.files import write_text
from asmil.reporting import Estimate
from asmil.reporting.text import markdown_table

REFERENCES = ("abmil", "abmil, none")
PRIMARY = {"classification": "auc", "survival": "c_index"}
MEASURED = ("jsd_late", "effective_share", "training_seconds")


def record(sweep: Path) -> pd.DataFrame:
    """All cohorts and variants of a finished sweep."""
    results = pd.read_csv(sweep / "results.csv")
    finished = results[results["status"] == "done"]
    tables = [compared(str(cohort), part, sweep) for cohort, part in finished.groupby("cohort", sort=False)]
    return pd.concat(tables, ignore_index=True)


def compared(cohort: str, results: pd.DataFrame, sweep: Path) -> pd.DataFrame:
    """The variants of a cohort: scores, and differences to the reference."""
    runs = {str(variant): sweep / part["run"].iloc[0] for variant, part in results.groupby("variant", sort=False)}
    reference = next((name for name in REFERENCES if name in runs), next(iter(runs)))
    comparison = compare_runs(list(runs.values()), reference=runs[reference], unit="patient")
    primary = next(metric.name for metric in comparison.metrics if metric.name.endswith(tuple(PRIMARY.values())))
    name_of = {str(run.path): run.name for run in comparison.runs}
    scores = {run.name: run.metrics[primary] for run in comparison.runs}
    differences = {found.run: found for found in comparison.differences if found.metric.name == primary}
    rows = []
    for variant, run in runs.items():
        name = name_of[str(run)]
        row: dict[str, Any] = {"cohort": cohort, "variant": variant, "metric": primary}
        row |= {"patients": comparison.n_patients, **_columns("value", scores[name])}
        if variant != reference:
            row |= {**_columns("difference", differences[name].estimate), "p": differences[name].p}
        own = results[results["variant"] == variant]
        row |= {column: own[column].mean() for column in MEASURED if column in own}
        rows.append(row)
    table = pd.DataFrame(rows)
    tested = table["p"].notna()
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p"].tolist())
    return table


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    low, high = estimate.interval
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def lines(table: pd.DataFrame) -> str:
    """A record as a table: one row per variant, best mean first, two columns per cohort."""
    cohorts = list(dict.fromkeys(table["cohort"]))
    order = table.groupby("variant")["value"].mean().sort_values(ascending=False).index
    by_key = table.set_index(["variant", "cohort"])
    rows = []
    for variant in order:
        cells = [f"{variant}"]
        for cohort in cohorts:
            if (variant, cohort) not in by_key.index:
                cells += ["", ""]
                continue
            row = by_key.loc[(variant, cohort)]
            cells += [_score(row), _difference(row)]
        rows.append(cells)
    headers = ["", *(word for cohort in cohorts for word in (cohort, "difference"))]
    return markdown_table(headers, rows)


def _score(row: pd.Series) -> str:
    return f"{row['value']:.3f} ({row['value_low']:.3f} to {row['value_high']:.3f})"


def _difference(row: pd.Series) -> str:
    if pd.isna(row["p"]):
        return "reference"
    shown = f"{row['difference']:+.3f} ({row['difference_low']:+.3f} to {row['difference_high']:+.3f})"
    return f"**{shown}**" if row["p_holm"] < 0.05 else shown


def write_page(records: Path, page: Path) -> None:
    """Replace the tables of the page, each between `<!-- NAME -->` and `<!-- end -->`."""
    text = page.read_text()
    for path in sorted(records.glob("*.csv")):
        begin, end = f"<!-- {path.stem} -->\n", "<!-- end -->"
        before, found, after = text.partition(begin)
        if found:
            text = f"{before}{begin}{lines(pd.read_csv(path))}\n{end}{after.partition(end)[2]}"
    write_text(page, text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="write a table for each finished sweep")
    recording.add_argument("sweeps", type=Path, nargs="+")
    recording.add_argument("--out", type=Path, required=True)
    writing = verbs.add_parser("page", help="write the tables into the page")
    writing.add_argument("records", type=Path)
    writing.add_argument("--page", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.verb == "page":
        write_page(given.records, given.page)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for sweep in given.sweeps:
        record(sweep).to_csv(given.out / f"{sweep.name.removeprefix('real_')}.csv", index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
