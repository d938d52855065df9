"""What page templates read: numbers of the records in docs/results and in the package, as text.

The functions without an underscore are the names that a template may use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

import anchor_study_report
import real_tissue_report
import reproduction
from asmil.paper.claims.measured import BUNDLED, Measured
from asmil.paper.comparing import seed_values
from asmil.paper.printed import printed_table
from asmil.paper.recipes import RECIPES
from markdown_table import markdown_table

RESULTS = Path(__file__).parent / "results"
MEASURED = Measured()
real_tissue = real_tissue_report.Study(RESULTS / "real_tissue")
STAND_INS = "dynamics (stand-ins)"
CONTROLS = {"random": "random order", "oracle": "true tumor tiles first"}
KINDS = {
    "attention": "attention",
    "attention_logit": "attention x tile logit",
    "leave_one_out": "leave one out",
    "gradient": "gradient x input",
    "integrated_gradients": "integrated gradients",
    **CONTROLS,
}
STAINS = {
    "original": "unchanged",
    **{f"hue{degrees}": f"hue + {degrees} degrees" for degrees in (10, 20, 40, 60)},
    "h0.7": "H x 0.7",
    "h0.5e1.6": "H x 0.5, E x 1.6",
}
STUDY_COLUMNS = (
    "method",
    "term",
    "macro-F1",
    "paper: change of F1",
    "AUC",
    "paper: change of AUC",
    "tile AUC",
    "effective share",
    "JSD between epochs",
    "seeds: shared top 1 %",
)


@cache
def record(name: str) -> Any:
    """The content of a JSON file, or the rows of a JSON Lines file, of docs/results."""
    path = RESULTS / name
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())


@cache
def results(table: str) -> pd.DataFrame:
    """The trainings of a table of the paper."""
    if table == STAND_INS:
        return pd.read_csv(RESULTS / "reproduction" / "dynamics_stand_ins.csv")
    return MEASURED.results(table)


def value(table: str, row: str, dataset: str, metric: str) -> float:
    """The mean over seeds of a row on a data set."""
    recipe = RECIPES[table.split(" ")[0]]
    row_of_recipe = next(each for each in recipe.rows if each.name == row)
    values = seed_values(results(table), row_of_recipe, dataset, metric)
    if values.empty:
        raise SystemExit(f"{table} has no {metric} of {row} on {dataset}; correct the template")
    return float(values.mean())


def ours(table: str, *rows: str, on: str = "bracs", metric: str = "test_f1", shape: str = ".2f") -> str:
    """Our means of some rows, in their order."""
    return ", ".join(f"{value(table, row, on, metric):{shape}}" for row in rows)


def span(table: str, *rows: str, on: str = "bracs", metric: str = "test_f1", shape: str = ".2f") -> str:
    """The lowest and the highest of our means of some rows."""
    return spanned((value(table, row, on, metric) for row in rows), shape)


def measured_rows(table: str, on: str, metric: str, containing: str = "", without: str = "asmil") -> list[str]:
    """The rows of a table with results on a data set, the highest first; without: rows whose name starts so."""
    recipe = RECIPES[table]
    names = [row.name for row in recipe.rows if containing in row.name and not row.name.startswith(without)]
    known = set(results(table).dropna(subset=[metric]).query("cohort.str.startswith(@on + '-')")["variant"])
    return sorted((name for name in names if name in known), key=lambda name: -value(table, name, on, metric))


def printed(table: str, key: str, *rows: dict[str, Any], shape: str = ".3f") -> str:
    """Printed means of the rows with these properties, in their order."""
    return ", ".join(f"{printed_table(table).value(key, **about):{shape}}" for about in rows)


def claim(name: str) -> dict[str, Any]:
    """A claim with its verdict, from the record."""
    return next(each for each in record("claims.json") if each["id"] == name)


def verdict(name: str) -> str:
    """The verdict on a claim."""
    return str(claim(name)["verdict"])


def verdicts(*how: str) -> Counter[str]:
    """How many claims have each verdict; how: only those decided in these ways."""
    return Counter(each["verdict"] for each in record("claims.json") if not how or each["how"] in how)


def refuted_on_tissue() -> list[dict[str, Any]]:
    """The claims that real tissue refutes."""
    return [each for each in record("claims.json") if each["how"] == "tissue"]


def site_bias_table() -> str:
    """AUC of methods on one cohort by the share of training patients whose site depends on the label."""
    table = pd.read_csv(RESULTS / "site_bias.csv")
    wide = table.pivot(index="variant", columns="cohort", values="value").loc[table["variant"].drop_duplicates()]
    rows = [[name, *map("{:.3f}".format, row)] for name, row in zip(wide.index, wide.to_numpy(), strict=True)]
    return markdown_table(["", *wide.columns], rows)


def about() -> dict[str, Any]:
    """How the results that come with the package were made."""
    return json.loads(files("asmil.paper").joinpath(BUNDLED, "about.json").read_text())  # type: ignore[no-any-return]


def tables_run() -> int:
    """The number of tables and figures with results."""
    return sum(map(MEASURED.has, RECIPES))


def trainings(*tables: str) -> int:
    """The number of trainings behind some tables, or behind all that were run on stand-ins."""
    names = tables or [STAND_INS, *(name for name in RECIPES if MEASURED.has(name) and name != "dynamics")]
    return sum(len(results(name)) for name in names)


def not_run() -> str:
    """What tables with results lack: rows without any on some of their data sets."""
    lines = []
    for name, recipe in RECIPES.items():
        if name == "dynamics" or not MEASURED.has(name):
            continue
        lacking: dict[str, list[str]] = {}
        for data_set in recipe.datasets:
            known = set(results(name).query("cohort.str.startswith(@data_set + '-')")["variant"])
            missing = [row.name for row in recipe.rows if row.name not in known]
            if missing:
                rows = "all rows" if not known else ", ".join(missing)
                lacking.setdefault(rows, []).append(data_set)
        lines += [f"- {link(name)}: {rows} ({', '.join(sets)})" for rows, sets in lacking.items()]
    return "\n".join(lines)


def seeds_of(*data_sets: str) -> str:
    """How many tables have how many seeds on some data sets."""
    most = [
        int(rows["seed"].nunique())
        for name in RECIPES
        if name != "dynamics" and MEASURED.has(name)
        for rows in [results(name)[results(name)["cohort"].str.startswith(tuple(f"{each}-" for each in data_sets))]]
        if len(rows)
    ]
    return ", ".join(f"{count} have {seeds} seeds" for seeds, count in sorted(Counter(most).items()))


def link(table: str) -> str:
    """A link to the whole table."""
    return f"[{table}](results/tables_reproduction.md#{reproduction.anchor_of(RECIPES[table])})"


def survival(*methods: str) -> str:
    """Mean C-index of some methods over the folds that all of them have."""
    wide = results("survival").pivot_table("test_c_index", ["cohort", "fold"], "variant")[list(methods)].dropna()
    return ", ".join(f"{mean:.2f}" for mean in wide.mean())


def fox(source: str) -> str:
    """The range of accuracies on FOX over methods: our results, or those of the paper."""
    report = record("classic.json")
    if source == "paper":
        values = [sets["fox"][0] for sets in report["paper"]["accuracy"].values()]
    else:
        values = [row["mean"] for row in report["results"] if row["set"] == "fox" and row["rule"] == "last"]
    return f"{min(values):.2f} to {max(values):.2f} for {len(values)} methods"


def classic(name: str, method: str, rule: str = "last") -> float:
    """The mean accuracy of a method on a classic set."""
    found = record("classic.json")["results"]
    return next(float(row["mean"]) for row in found if (row["set"], row["name"], row["rule"]) == (name, method, rule))


def classic_spread() -> str:
    """The range of standard deviations over folds, over methods and all sets but the smallest."""
    report = record("classic.json")
    smallest = min(report["sets"], key=lambda each: each["bags"])["name"]
    rows = [row for row in report["results"] if row["rule"] == "last" and row["set"] != smallest]
    return spanned((row["sd_folds"] for row in rows), ".2f")


def optimism() -> str:
    """The range of what choosing the epoch on the test bags adds to accuracies."""
    chosen = [row for row in record("classic.json")["results"] if row["rule"] == "optimistic"]
    return spanned((row["mean"] - classic(row["set"], row["name"]) for row in chosen), ".2f")


def beta_span(dataset: str) -> str:
    """The range of ASMIL's AUC over all weights of the anchor."""
    return span("beta", *(row.name for row in RECIPES["beta"].rows), on=dataset, metric="test_auc")


def study(base: str, key: str, *terms: str, folder: str = "anchor_study", shape: str = ".3f") -> str:
    """Means over seeds of a method in the anchor study, for some terms."""
    rows = pd.DataFrame(record(f"{folder}/results.jsonl"))
    means = rows.groupby(["base", "term"])[key].mean()
    return ", ".join(f"{means[base, term]:{shape}}" for term in terms)


def study_change(base: str, key: str, *terms: str, folder: str = "anchor_study", shape: str = ".3f") -> str:
    """Mean changes against the method without a term."""
    means = pd.DataFrame(record(f"{folder}/results.jsonl")).groupby(["base", "term"])[key].mean()
    return ", ".join(f"{means[base, term] - means[base, 'none']:+{shape}}" for term in terms)


def shared_tiles(base: str, *terms: str, shape: str = ".0%") -> str:
    """The share of the heaviest 1 % of tiles that two seeds of a method have in common, for some terms."""
    rows = {(row["base"], row["term"]): row for row in record("anchor_study/agreement.json")}
    return ", ".join(f"{rows[base, term]['val_top1_overlap']:{shape}}".replace("%", " %") for term in terms)


def spanned(values: Iterable[float], shape: str = ".1f", unit: float = 1) -> str:
    """The lowest and the highest of some numbers, in a unit."""
    found = [value / unit for value in values]
    return f"{min(found):{shape}} to {max(found):{shape}}"


def study_tables(folder: str = "anchor_study") -> dict[str, str]:
    """All tables of the anchor study, about recorded validation slides."""
    trainings = pd.DataFrame(record(f"{folder}/results.jsonl"))
    return {
        "performance": anchor_study_report.performance_table(trainings),
        "attention": anchor_study_report.attention_table(trainings, record(f"{folder}/agreement.json"), "val"),
        "difference": anchor_study_report.difference_table(trainings, "val"),
    }


def study_table() -> str:
    """The methods and terms of the anchor study, beside the gains in the paper."""
    rows = []
    for base, term in anchor_study_report.variants_of(pd.DataFrame(record("anchor_study/results.jsonl"))):
        gains = [anchor_study_report.gain_cell(base, term, key) for key in ("f1", "auc")]
        f1, auc, tiles, share = (study(base, key, term) for key in ("f1", "auc", "tile_auc", "val_effective_share"))
        moved = study(base, "val_jsd_mean", term, shape=".2g")
        rows.append(
            [base, term, f1, gains[0], auc, gains[1], tiles, share, moved, shared_tiles(base, term, shape=".3f")]
        )
    return markdown_table(STUDY_COLUMNS, rows, words=2)


def faithful(method: str, kind: str, key: str = "area") -> str:
    """A metric of a kind of map, without its interval."""
    return _rounded(record("faithfulness.json")[method]["kinds"][kind][key]["value"])


def faithfulness_table(key: str) -> str:
    """A metric of all kinds of map of all methods, with intervals; empty cells where a method has none."""
    methods = record("faithfulness.json")
    rows = []
    for kind, title in KINDS.items():
        found = [methods[method]["kinds"].get(kind, {}).get(key) for method in methods]
        cells = [f"{_rounded(e['value'])} ({_rounded(e['low'])} to {_rounded(e['high'])})" if e else "" for e in found]
        if any(found) and not (key == "over_attention" and kind in CONTROLS):
            rows.append([title, *cells])
    return markdown_table(["map", *methods], rows)


def _rounded(number: float) -> str:
    return f"{round(number, 2) + 0.0:.2f}"
