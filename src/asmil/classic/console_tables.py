"""The report as tables in a terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from asmil.classic.rules import RULES
from asmil.classic.tables import NONE, Report


def rule_title(report: Report, rule: str) -> str:
    """What stands above the table of a rule."""
    protocol = report["protocol"]
    seeds = f"{len(protocol['seeds'])} seed{'s' * (len(protocol['seeds']) > 1)}"
    return f"{rule}: {RULES[rule]}; accuracy ± standard deviation over {protocol['folds']} folds x {seeds}"


def rule_grid(report: Report, rule: str) -> Table:
    """Accuracy by one rule, methods x sets."""
    found = {(entry["name"], entry["set"]): entry for entry in report["results"] if entry["rule"] == rule}
    cells = {key: (entry["mean"], entry["sd_folds"]) for key, entry in found.items()}
    return _grid([one["name"] for one in report["sets"]], [row["name"] for row in report["methods"]], cells)


def paper_grid(report: Report) -> Table | None:
    """The figures that the paper prints for these sets, if there are any."""
    figures = report["paper"]["accuracy"]
    printed = {name for of in figures.values() for name in of}
    names = [one["name"] for one in report["sets"] if one["name"] in printed]
    cells = {(method, name): tuple(pair) for method, of in figures.items() for name, pair in of.items()}
    return _grid(names, list(figures), cells) if names else None


def _grid(columns: list[str], rows: list[str], cells: dict[tuple[str, str], tuple[float, float]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold")
    for name in columns:
        table.add_column(escape(name), justify="right", overflow="fold")
    for row in rows:
        there = [cells.get((row, name)) for name in columns]
        if any(there):
            shown = (f"{cell[0]:.3f}\n[dim]±{cell[1]:.3f}[/dim]" if cell else NONE for cell in there)
            table.add_row(escape(row), *shown)
    return table
