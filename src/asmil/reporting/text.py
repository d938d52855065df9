"""Render documents and tables as Markdown, LaTeX, CSV and in the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asmil.reporting.document import Block, Cell, Document, Figure, Folded, Heading, Links, Note, SideBySide, Table
from asmil.reporting.formats import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TerminalTable

LONGEST_NUMBER = 14
NUMBER = re.compile(r"[-+−<>~≈]{0,2}\.?\d")
GAP = 2
"""Width of the gap between two columns of a table in a terminal, including the line."""
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "²": r"\textsuperscript{2}",
    "\n": " ",
}


def markdown_document(document: Document) -> str:
    """The document as Markdown, without figures and folded blocks."""
    parts = [f"# {document.kind}: {escape_markdown(document.title)}", "", escape_markdown(document.answer)]
    parts += ["", escape_markdown(document.about)] if document.about else []
    said = [("Alarm", text) for text in document.alarms] + [("Warning", text) for text in document.warnings]
    if said:
        parts += ["", *(f"- **{kind}:** {escape_markdown(text)}" for kind, text in said)]
    for section in document.sections:
        written = [line for block in section.blocks for line in _markdown_block(block)]
        if written:
            parts += ["", f"## {escape_markdown(section.title)}", *written]
    if document.reading:
        parts += ["", "## How to read these numbers", ""]
        parts += [f"- {escape_markdown(sentence)}" for sentence in document.reading]
    return "\n".join(parts) + "\n"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text."""
    return "\n".join(_markdown_lines(columns, ([escape_markdown(cell) for cell in row] for row in rows)))


def _markdown_lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table whose rows are Markdown already."""
    titles = [escape_markdown(title) for title in columns]
    return [f"| {' | '.join(titles)} |", "|" + " --- |" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)]


def escape_markdown(text: str) -> str:
    """Escaped text that can neither end a table cell nor start HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("|", "\\|").replace("\n", " ")


def _markdown_block(block: Block) -> list[str]:
    if isinstance(block, str):
        return ["", escape_markdown(block)]
    if isinstance(block, Note):
        return ["", f"**{escape_markdown(block.text)}**"]
    if isinstance(block, Heading):
        return ["", f"### {escape_markdown(block.text)}"]
    if isinstance(block, Links):
        texts = [": ".join(filter(None, [link.text, link.note])) for link in block.links]
        return ["", *(f"- {escape_markdown(text)}" for text in texts)]
    if isinstance(block, SideBySide):
        return [line for inner in block.blocks for line in _markdown_block(inner)]
    if isinstance(block, Table):
        rows = []
        for header, *row in block.cells():
            notes = f" ({escape_markdown(', '.join(header.notes))})" if header.notes else ""
            rows.append([_markdown_cell(header) + notes, *map(_markdown_cell, row)])
        caption = ["", escape_markdown(block.caption)] if block.caption else []
        return [*caption, "", *_markdown_lines(block.columns, rows)]
    assert isinstance(block, Figure | Folded)
    return []


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    text = f"**{text}**" if cell.strong else text
    text += f" ({escape_markdown(cell.interval)})" if cell.interval else ""
    text += f", sd{f' over {cell.spread_over}' * bool(cell.spread_over)} {cell.spread}" if cell.spread else ""
    return text


def latex_table(table: Table, caption: str = "", fitted: bool = False) -> str:
    """A booktabs table; caption: LaTeX code, by default the escaped caption of the table.

    fitted: intervals stand below their values, and the table is at most as wide as the text (needs graphicx)
    """
    columns = "l" + "r" * (len(table.columns) - 1)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption or escape_latex(table.caption)}}}",
        *[r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"] * fitted,
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escape_latex, table.columns)) + r" \\",
        r"\midrule",
        *(" & ".join(_latex_cell(cell, fitted) for cell in row) + r" \\" for row in table.cells()),
        r"\bottomrule",
        r"\end{tabular}" + "}" * fitted,
        r"\end{table}",
    ]
    return "\n".join(lines)


def latex_document(document: Document, tables: Sequence[Table]) -> str:
    """The given tables, preceded by the document's sentences as comments."""
    comments = [r"Needs \usepackage{booktabs}.", document.answer, *document.alarms, *document.warnings]
    comments += document.reading
    written = "\n".join("% " + text.replace("\n", " ") for text in comments)
    return "\n\n".join([written, *map(latex_table, tables)]) + "\n"


def escape_latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)


def _latex_cell(cell: Cell, stacked: bool = False) -> str:
    text = escape_latex(cell.text)
    text = rf"\textbf{{{text}}}" if cell.strong else text
    text += rf" $\pm$ {cell.spread}" if cell.spread else ""
    if not cell.interval:
        return text
    interval = f"({escape_latex(cell.interval)})"
    below = rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{text}\\{{\footnotesize {interval}}}\end{{tabular}}"
    return below if stacked else f"{text} {interval}"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV text with the keys of all rows as its header; undefined numbers are empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    written = io.StringIO()
    writer = csv.DictWriter(written, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: "" if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        )
    return written.getvalue()


def print_document(document: Document, console: Console) -> None:
    """Print the answer, the alarms, the first warnings and the tables meant for a terminal."""
    from asmil.console import say

    say(console, document.answer)
    for table in document.tables():
        if table.in_terminal:
            print_table(table, console)
    for text in document.first_alarms:
        say(console, f"alarm: {text}", style="red")
    for text in document.first_warnings:
        say(console, f"warning: {text}", style="yellow")
    if document.more_warnings:
        more = format_count(len(document.more_warnings), "more warning")
        say(console, f"{more} in the report.", style="yellow")


def print_table(table: Table, console: Console) -> None:
    """Print a table, or one block of lines per row if the terminal is too narrow for its words."""
    from rich.text import Text

    from asmil.console import say

    table = _encodable(table, console.encoding)
    if sum(_narrowest_columns(table)) <= console.width:
        console.print(_drawn(table, console.width, in_ascii=console.options.ascii_only))
        return
    console.print(Text(f"\n{table.title}" if table.title else ""))
    for header, *row in table.cells():
        console.print(Text("\n".join([header.text, *(f"  {note}" for note in header.notes)]), style="bold"))
        for title, cell in zip(table.columns[1:], row, strict=True):
            if title not in table.narrow and cell.text:
                interval = f" ({cell.interval})" if cell.interval else ""
                say(console, f"  {title}: {_with_spread(cell)}{interval}")


def _encodable(table: Table, encoding: str) -> Table:
    """The table with characters that the encoding supports, so that widths match what is printed."""
    from asmil.console import encodable

    def shown(text: str) -> str:
        return encodable(text, encoding)

    rows = [
        [
            replace(
                cell,
                text=shown(cell.text),
                notes=tuple(map(shown, cell.notes)),
                interval=shown(cell.interval),
                # the sign is added here, so that its width is known
                spread=shown(f" ±{cell.spread}") if cell.spread else "",
            )
            for cell in row
        ]
        for row in table.cells()
    ]
    columns = tuple(map(shown, table.columns))
    return replace(
        table, columns=columns, rows=rows, title=shown(table.title), narrow=frozenset(map(shown, table.narrow))
    )


def _narrowest_columns(table: Table) -> list[int]:
    """The minimum width of each column, including its gap: neither numbers nor words are broken."""
    widths = []
    for column, title in _shown_columns(table):
        lines = _lines(table, column)
        numbers = _are_numbers([row[column] for row in table.cells()])
        parts = lines if numbers else [word for line in lines for word in line.split()]
        widths.append(max([*map(len, parts), *map(len, title.split()), 1]) + GAP)
    return widths


def _widths(table: Table, room: int) -> list[int]:
    """The width of each column, without its gap, if at least the minimum widths fit: the longest lines wrap first."""
    narrowest = [width - GAP for width in _narrowest_columns(table)]
    widest = [max([*map(len, _lines(table, column)), len(title)]) for column, title in _shown_columns(table)]
    room -= GAP * len(widest)

    def limited(limit: int) -> list[int]:
        return [min(wide, max(least, limit)) for wide, least in zip(widest, narrowest, strict=True)]

    limit = max(widest)
    while sum(limited(limit)) > room and limit > 0:
        limit -= 1
    return limited(limit)


def _shown_columns(table: Table) -> list[tuple[int, str]]:
    return [(column, title) for column, title in enumerate(table.columns) if title not in table.narrow]


def _lines(table: Table, column: int) -> list[str]:
    """All lines of a column's cells."""
    cells = [row[column] for row in table.cells()]
    lines = [line for cell in cells for line in (_with_spread(cell), _short_interval(cell))]
    return lines + ([note for cell in cells for note in cell.notes] if column == 0 else [])


def _are_numbers(cells: Sequence[Cell]) -> bool:
    """Whether a column contains only numbers, with or without a unit, or nothing; such columns are right-aligned."""
    texts = [cell.text for cell in cells if cell.text not in ("", "-", "–")]
    return all(len(text) <= LONGEST_NUMBER and NUMBER.match(text) for text in texts)


def _drawn(table: Table, room: int, in_ascii: bool) -> TerminalTable:
    """A table for the terminal; intervals and the notes of row headers are dimmed below the values."""
    from rich.box import SIMPLE_HEAD, Box
    from rich.markup import escape
    from rich.table import Table as TerminalTable

    shown = [column for column, _ in _shown_columns(table)]
    # if line characters cannot be encoded, rich would draw a frame, which does not fit
    box = Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True) if in_ascii else SIMPLE_HEAD
    drawn = TerminalTable(title=escape(table.title) or None, box=box, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in zip(shown, _widths(table, room), strict=True):
        numbers = column > 0 and _are_numbers([row[column] for row in table.cells()])
        title = escape(table.columns[column])
        drawn.add_column(
            title.replace(" ", "\n") if numbers else title,
            justify="right" if numbers else "left",
            no_wrap=numbers,
            width=width,
            overflow="fold",
        )
    for row in table.cells():
        drawn.add_row(*(_terminal_cell(row[column], with_notes=column == 0) for column in shown))
    return drawn


def _terminal_cell(cell: Cell, with_notes: bool) -> str:
    from rich.markup import escape

    text = escape(cell.text)
    text = f"[bold]{text}[/bold]" if cell.strong else text
    text += _with_spread(cell).removeprefix(cell.text)
    interval = _short_interval(cell)
    below = [*([interval] if interval else []), *(cell.notes if with_notes else ())]
    return "\n".join([text, *(f"[dim]{escape(line)}[/dim]" for line in below)])


def _with_spread(cell: Cell) -> str:
    return cell.text + cell.spread


def _short_interval(cell: Cell) -> str:
    # a dash between two numbers is short, but before a negative number it looks like a sign
    return cell.interval if set("+-−") & set(cell.interval) else re.sub(r"(?<=\d) to (?=\d)", "–", cell.interval)
