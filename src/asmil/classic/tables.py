"""The report as Markdown, CSV and tables in a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any

from asmil.classic.rules import RULES
from asmil.reporting import Cell, Table, markdown_table

Report = Mapping[str, Any]
NONE = "–"


def accuracy_table(report: Report, rule: str) -> str:
    """Mean accuracy ± spread over folds, methods x sets."""
    return _methods_by_sets(report, rule, lambda entry: f"{entry['mean']:.3f} ± {entry['sd_folds']:.3f}")


def seed_table(report: Report, rule: str) -> str:
    """The lowest and highest mean of a seed, methods x sets."""
    return _methods_by_sets(report, rule, lambda entry: f"{min(entry['per_seed']):.3f}–{max(entry['per_seed']):.3f}")


def auc_table(report: Report, rule: str) -> str:
    """AUC over the joined folds of a seed, mean over seeds, methods x sets."""
    return _methods_by_sets(report, rule, lambda entry: f"{entry['auc']:.3f}")


def paper_table(report: Report) -> str:
    """The figures that the paper prints, methods x sets."""
    figures = report["paper"]["accuracy"]
    names = list(next(iter(figures.values())))
    rows = [[method, *(f"{of[name][0]:.3f} ± {of[name][1]:.3f}" for name in names)] for method, of in figures.items()]
    return markdown_table(["method", *names], rows)


def set_table(report: Report) -> str:
    """The sizes of the sets, and how well their best single column predicts the label."""
    header = [
        "set",
        "bags (positive)",
        "instances",
        "features",
        "instances per bag",
        "best column: per instance, per bag",
    ]
    rows = []
    for bag_set in report["sets"]:
        least, median, most = bag_set["bag_sizes"]
        best = bag_set["best_column"]
        rows.append(
            [
                bag_set["name"],
                f"{bag_set['bags']} ({bag_set['positive']})",
                str(bag_set["instances"]),
                str(bag_set["features"]),
                f"{least} / {median:g} / {most}",
                f"{best['per_instance']:.3f}, {best['per_bag']:.3f}",
            ]
        )
    return markdown_table(header, rows)


def results_section(report: Report) -> str:
    """All tables with their headings, as in `classic.md`."""
    parts = ["## The sets", set_table(report)]
    for rule in rules_of(report):
        parts += [f"## `{rule}`: {RULES[rule]}", accuracy_table(report, rule)]
    parts += [
        "## `last`, seed by seed: the lowest and highest mean of a seed",
        seed_table(report, "last"),
        "## `last`: AUC over the joined folds of a seed, mean over seeds",
        auc_table(report, "last"),
        "## What the paper prints, and why it cannot be compared",
        paper_table(report),
        "\n".join(f"- {reason}" for reason in report["paper"]["why_not_comparable"]),
    ]
    return "\n\n".join(parts) + "\n"


def markdown_report(report: Report) -> str:
    """The page `classic.md`."""
    protocol = report["protocol"]
    seeds = f"{len(protocol['seeds'])} seed{'s' * (len(protocol['seeds']) > 1)}"
    about = (
        f"Stratified {protocol['folds']}-fold, shuffled, {seeds}; scaling fitted on training bags; accuracy, mean ± "
        f"standard deviation over folds; asmil {report['asmil']}."
    )
    return f"# Classic benchmarks\n\n```bash\n{protocol['command']}\n```\n\n{about}\n\n{results_section(report)}"


def csv_table(report: Report) -> str:
    """One line per set, method and rule."""
    columns = ["set", "method", "rule", "mean", "sd_folds", "n_folds", "sd_seeds", "per_seed", "auc", "seconds"]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    for entry in report["results"]:
        spread = "" if entry["sd_seeds"] is None else f"{entry['sd_seeds']:.6f}"
        per_seed = " ".join(f"{value:.6f}" for value in entry["per_seed"])
        numbers = [f"{entry['mean']:.6f}", f"{entry['sd_folds']:.6f}", entry["n_folds"], spread, per_seed]
        writer.writerow([entry["set"], entry["name"], entry["rule"], *numbers, f"{entry['auc']:.6f}", entry["seconds"]])
    return written.getvalue()


def rules_of(report: Report) -> list[str]:
    """The rules with results in a report, the main one first."""
    present = {entry["rule"] for entry in report["results"]}
    return [rule for rule in RULES if rule in present]


def _methods_by_sets(report: Report, rule: str, cell: Callable[[Mapping[str, Any]], str]) -> str:
    entries = {(entry["name"], entry["set"]): entry for entry in report["results"] if entry["rule"] == rule}
    names = [bag_set["name"] for bag_set in report["sets"]]
    rows = [
        [method, *(cell(entries[method, name]) if (method, name) in entries else NONE for name in names)]
        for method in (row["name"] for row in report["methods"])
        if any((method, name) in entries for name in names)
    ]
    return markdown_table(["method", *names], rows)


def rule_title(report: Report, rule: str) -> str:
    """The title of the table of a rule."""
    protocol = report["protocol"]
    seeds = f"{len(protocol['seeds'])} seed{'s' * (len(protocol['seeds']) > 1)}"
    return f"{rule}: {RULES[rule]}; accuracy ± standard deviation over {protocol['folds']} folds x {seeds}"


def rule_grid(report: Report, rule: str) -> Table:
    """Accuracy by one rule, methods x sets."""
    entries = {(entry["name"], entry["set"]): entry for entry in report["results"] if entry["rule"] == rule}
    cells = {key: (entry["mean"], entry["sd_folds"]) for key, entry in entries.items()}
    return _grid([bag_set["name"] for bag_set in report["sets"]], [row["name"] for row in report["methods"]], cells)


def paper_grid(report: Report) -> Table | None:
    """The figures that the paper prints for these sets, if there are any."""
    figures = report["paper"]["accuracy"]
    printed = {name for of in figures.values() for name in of}
    names = [bag_set["name"] for bag_set in report["sets"] if bag_set["name"] in printed]
    cells = {(method, name): tuple(pair) for method, of in figures.items() for name, pair in of.items()}
    return _grid(names, list(figures), cells) if names else None


def _grid(columns: list[str], rows: list[str], cells: dict[tuple[str, str], tuple[float, float]]) -> Table:
    shown = []
    for row in rows:
        values = [cells.get((row, name)) for name in columns]
        if any(values):
            shown.append([row, *(Cell(f"{cell[0]:.3f}", spread=f"{cell[1]:.3f}") if cell else NONE for cell in values)])
    return Table(("method", *columns), shown)
