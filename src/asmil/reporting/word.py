"""Word files of tables and text, with python-docx, which the extra `word` installs."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from asmil.errors import AsmilError
from asmil.reporting.document import Block, Cell, Heading, Table

TABLE_STYLE = "Light List"
CELL_PT = 8


def word_file(blocks: Sequence[Block]) -> bytes:
    """Paragraphs, headings and tables as a .docx file; a table has its caption above it."""
    try:
        from docx import Document as new_document
    except ModuleNotFoundError:
        raise AsmilError("Word files need python-docx; install it with `pip install 'asmil[word]'`") from None
    document = new_document()
    for block in blocks:
        if isinstance(block, Heading):
            document.add_heading(block.text, level=2)
        elif isinstance(block, Table):
            _add_table(document, block)
        else:
            assert isinstance(block, str)
            _add_paragraph(document, block)
    content = io.BytesIO()
    document.save(content)
    return content.getvalue()


def _add_paragraph(document: Any, text: str) -> None:
    """A paragraph; what is between two asterisks is bold."""
    paragraph = document.add_paragraph()
    for number, part in enumerate(re.split(r"\*\*", text.replace("`", ""))):
        paragraph.add_run(part).bold = number % 2 == 1


def _add_table(document: Any, table: Table) -> None:
    from docx.shared import Pt

    _add_paragraph(document, f"**{table.title}.** {table.caption}" if table.title else table.caption)
    drawn = document.add_table(rows=1, cols=len(table.columns), style=TABLE_STYLE)
    lines = [[Cell(title) for title in table.columns], *table.cells()]
    for _ in lines[1:]:
        drawn.add_row()
    for row, cells in zip(drawn.rows, lines, strict=True):
        for place, cell in zip(row.cells, cells, strict=True):
            run = place.paragraphs[0].add_run(cell_text(cell))
            run.font.size, run.bold = Pt(CELL_PT), cell.strong or None
    document.add_paragraph()


def cell_text(cell: Cell) -> str:
    """A cell in one line: the value, its standard deviation and its interval."""
    spread = f" ± {cell.spread}" if cell.spread else ""
    return f"{cell.text}{spread}" + (f" ({cell.interval})" if cell.interval else "")
