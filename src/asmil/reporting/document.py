"""The content of a report, independent of its rendering: tables, figures and documents.

All text is plain text, which the renderers escape. Text between backticks is code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asmil.reporting.estimate import Estimate
from asmil.reporting.formats import format_count, format_interval_of, format_number

MOST_WARNINGS = 3
"""Maximum number of alarms and warnings at the top of a report; the others are folded away."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    notes: small lines below the text; Markdown and the terminal show only those of row headers, LaTeX none
    interval, spread: the interval and the standard deviation of a number, as text; spread_over: what sd is over
    strong: whether it is emphasized, such as the best value of a column
    bar: low, high and value on a scale from 0 to 1, drawn as a bar
    shade: a share from 0 to 1, drawn as the background
    """

    text: str
    notes: tuple[str, ...] = ()
    interval: str = ""
    spread: str = ""
    spread_over: str = ""
    strong: bool = False
    bar: tuple[float, float, float] | None = None
    shade: float | None = None


Row = Sequence[Cell | str]
"""A plain string is a cell with that text."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under column titles; the first cell of a row is its header.

    caption: explanation of the numbers
    in_terminal: whether commands print the table; narrow: titles of columns that are left out there
    emphasis: whether the numbers are large, as in the main table
    widths: of the columns, in percent, for a table of text, which is aligned to the left
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    caption: str = ""
    in_terminal: bool = False
    narrow: frozenset[str] = frozenset()
    emphasis: bool = False
    widths: Sequence[int] = ()

    def cells(self) -> Iterator[list[Cell]]:
        """The rows, every cell as a `Cell`."""
        for row in self.rows:
            yield [Cell(cell) if isinstance(cell, str) else cell for cell in row]


@dataclass(frozen=True)
class Figure:
    """SVG text or PNG bytes with a title; None draws nothing.

    address: of the full-size image, relative to the page, if this is a smaller copy
    """

    content: str | bytes | None
    title: str
    caption: str = ""
    address: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class SideBySide:
    """Blocks side by side, if the page is wide enough."""

    blocks: Sequence[Block]


@dataclass(frozen=True)
class Folded:
    """Blocks that are hidden until the reader unfolds them."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Note:
    """A highlighted sentence."""

    text: str


@dataclass(frozen=True)
class Link:
    """A link to another page.

    address: relative to the linking page
    note: what the page shows
    """

    text: str
    address: str
    note: str = ""


@dataclass(frozen=True)
class Links:
    """A list of other pages."""

    links: Sequence[Link]


Block = str | Table | Figure | Heading | SideBySide | Folded | Note | Links
"""A plain string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A titled part of a document."""

    title: str
    blocks: Sequence[Block]


def sections_of(blocks: Sequence[Block]) -> list[Section]:
    """One section per heading; the first block must be a heading."""
    sections: list[tuple[str, list[Block]]] = []
    for block in blocks:
        if isinstance(block, Heading):
            sections.append((block.text, []))
        else:
            sections[-1][1].append(block)
    return [Section(title, of_section) for title, of_section in sections]


def problem_sections(problems: Sequence[str], title: str = "") -> list[Section]:
    """A section with one note per slide or run that was left out; none if there are no problems."""
    named = title or f"Not evaluated: {format_count(len(problems), 'slide')}"
    return [Section(named, [Note(line) for line in problems])] if problems else []


@dataclass(frozen=True)
class Document:
    """A report: the answer first, then alarms and at most three warnings, the sections, and how to read them.

    kind: the kind of report; answer: the result in one sentence; about: the data it is based on
    alarms: reasons not to use the numbers or maps
    reading: sentences on how to read the numbers, folded away
    """

    kind: str
    title: str
    answer: str
    sections: Sequence[Section]
    about: str = ""
    alarms: Sequence[str] = ()
    warnings: Sequence[str] = ()
    reading: Sequence[str] = field(default=())

    @property
    def first_alarms(self) -> list[str]:
        """The alarms at the top."""
        return list(self.alarms[:MOST_WARNINGS])

    @property
    def first_warnings(self) -> list[str]:
        """The warnings at the top: together with the alarms at most three."""
        return list(self.warnings[: MOST_WARNINGS - len(self.first_alarms)])

    @property
    def more_warnings(self) -> list[str]:
        """The alarms and warnings that are folded away."""
        return [*self.alarms[MOST_WARNINGS:], *self.warnings[len(self.first_warnings) :]]

    def tables(self) -> list[Table]:
        """All tables that are not folded away, in order."""
        return list(_tables(block for section in self.sections for block in section.blocks))


def _tables(blocks: Iterable[Block]) -> Iterator[Table]:
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, SideBySide):
            yield from _tables(block.blocks)


def estimate_cell(
    estimate: Estimate,
    spread: tuple[str, float] | None = None,
    scale: tuple[float, float] | None = None,
    *,
    strong: bool = False,
) -> Cell:
    """A cell with value and interval.

    spread: what the standard deviation is over, and its value (nan: none); scale: draw the interval on this range
    """
    over, sd = spread or ("", math.nan)
    bar = None
    if scale is not None and estimate.interval.is_defined and not math.isnan(estimate.value):
        low, high, value = (
            min(1.0, max(0.0, (number - scale[0]) / (scale[1] - scale[0])))
            for number in (*estimate.interval, estimate.value)
        )
        bar = (low, high, value)
    return Cell(
        format_number(estimate.value),
        interval="" if math.isnan(estimate.value) else format_interval_of(estimate),
        spread="" if math.isnan(sd) else format_number(sd),
        spread_over=over,
        strong=strong,
        bar=bar,
    )


def settings_table(config: Mapping[str, Any]) -> Table:
    """The settings of a run, one row per value."""
    return Table(["setting", "value"], list(_flat(config)))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(map(str, value)) or "none"
        else:
            yield f"{prefix}{key}", "not set" if value is None or value == {} else str(value)
