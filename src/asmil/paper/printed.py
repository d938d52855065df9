"""What the paper prints: its tables and figures, read from `data/tables.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import Field, field_validator

from asmil.errors import AsmilError, did_you_mean
from asmil.settings.config import Settings
from asmil.settings.documents import parse_yaml, validated


class Column(Settings):
    """A column of a printed table: a metric, of a data set."""

    key: str
    metric: str
    dataset: str = ""
    unit: str = ""


class PrintedRow(Settings):
    """A row: its properties, and its numbers as (mean, sd); sd is nan where none is printed."""

    about: dict[str, Any]
    values: dict[str, tuple[float, float]]

    @field_validator("values", mode="before")
    @classmethod
    def _with_spread(cls, given: Mapping[str, list[float]]) -> dict[str, tuple[float, float]]:
        return {key: (pair[0], pair[1] if len(pair) > 1 else float("nan")) for key, pair in given.items()}


class PrintedTable(Settings):
    """A printed table. doubts: numbers in it that contradict others of the paper."""

    id: str
    label: str
    title: str
    seeds: int = 5
    columns: list[Column]
    rows: list[PrintedRow]
    doubts: list[str] = Field([], description="contradictions")

    @property
    def datasets(self) -> list[str]:
        """The data sets of the columns, in order."""
        return list(dict.fromkeys(column.dataset for column in self.columns if column.dataset))

    def row(self, **about: Any) -> PrintedRow:
        """The row with these properties; the first if there are several."""
        if not (rows := self._with(about)):
            raise KeyError(f"table {self.id} has no row {about}")
        return rows[0]

    def _with(self, about: Mapping[str, Any]) -> list[PrintedRow]:
        return [row for row in self.rows if all(row.about.get(name) == value for name, value in about.items())]

    def value(self, key: str, **about: Any) -> float:
        """The printed mean in a cell."""
        return self.row(**about).values[key][0]

    def best_other(self, key: str, **about: Any) -> tuple[float, float, str]:
        """ASMIL's mean, the highest other mean and its method, among the rows with these properties."""
        means = {row.about["method"]: row.values[key][0] for row in self._with(about)}
        mine = means.pop("asmil")
        best = max(means, key=lambda method: means[method])
        return mine, means[best], best


class PrintedFigure(Settings):
    """A figure, and what the paper says it shows; no numbers are printed."""

    id: str
    label: str
    title: str
    claimed: str


class _Paper(Settings):
    paper: str
    about: str
    tables: list[PrintedTable]
    figures: list[PrintedFigure]


@cache
def printed() -> tuple[dict[str, PrintedTable], dict[str, PrintedFigure]]:
    """All tables and all figures, by id."""
    text = files("asmil.paper").joinpath("data/tables.yaml").read_text(encoding="utf-8")
    values = parse_yaml(text)
    for table in values["tables"]:
        table["rows"] = [
            {"about": {k: v for k, v in row.items() if k != "values"}, "values": row["values"]} for row in table["rows"]
        ]
    paper = validated(values, _Paper, "data/tables.yaml", "install asmil again")
    return {table.id: table for table in paper.tables}, {figure.id: figure for figure in paper.figures}


def printed_table(name: str) -> PrintedTable:
    """A table by its id; the error for an unknown id names the nearest."""
    tables, figures = printed()
    if name not in tables:
        raise AsmilError(f"the paper has no table {name!r}: {did_you_mean(name, [*tables, *figures])}")
    return tables[name]
