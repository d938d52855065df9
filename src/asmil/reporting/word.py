"""Word files of tables and text, with python-docx, which the extra `word` installs."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from asmil.errors import AsmilError
from asmil.reporting.document import Block, Cell, Document, Heading, Table

TABLE_STYLE = "Light List"
CELL_PT = 8
A4_CM, MARGIN_CM = (21.0, 29.7), 1.8


def word_file(blocks: Sequence[Block], landscape: bool = False) -> bytes:
    """Paragraphs, headings and tables as a .docx file; a table has its caption above it."""
    try:
        from docx import Document as new_document
    except ModuleNotFoundError:
        raise AsmilError("Word files need python-docx; install it with `pip install 'asmil[word]'`") from None
    document = new_document()
    if landscape:
        _turn(document)
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


def word_document(document: Document, landscape: bool = False) -> bytes:
    """The paragraphs, headings and tables of a document as a .docx file."""
    blocks: list[Block] = [Heading(f"{document.kind}: {document.title}"), document.answer, document.about]
    blocks += [f"**Alarm:** {text}" for text in document.alarms]
    blocks += [f"**Warning:** {text}" for text in document.warnings]
    for section in document.sections:
        written = [block for block in section.blocks if isinstance(block, str | Heading | Table)]
        blocks += [Heading(section.title), *written]
    return word_file([*blocks, *document.reading], landscape)


def _turn(document: Any) -> None:
    """Landscape A4 with narrow margins."""
    from docx.enum.section import WD_ORIENT
    from docx.shared import Cm

    page = document.sections[0]
    page.orientation, page.page_height, page.page_width = WD_ORIENT.LANDSCAPE, *map(Cm, A4_CM)
    page.left_margin = page.right_margin = page.top_margin = page.bottom_margin = Cm(MARGIN_CM)


def _add_paragraph(document: Any, text: str) -> None:
    """A paragraph; what is between two asterisks is bold."""
    paragraph = document.add_paragraph()
    for number, part in enumerate(re.split(r"\*\*", text.replace("`", ""))):
        paragraph.add_run(part).bold = number % 2 == 1


def _add_table(document: Any, table: Table) -> None:
    from docx.oxml import OxmlElement
    from docx.shared import Pt

    if table.title or table.caption:
        _add_paragraph(document, f"**{table.title}.** {table.caption}" if table.title else table.caption)
    drawn = document.add_table(rows=1, cols=len(table.columns), style=TABLE_STYLE)
    lines = [[Cell(title) for title in table.columns], *table.cells()]
    for _ in lines[1:]:
        drawn.add_row()
    page = document.sections[0]
    room = page.page_width - page.left_margin - page.right_margin
    shares: Sequence[int] = table.widths or [1] * len(table.columns)
    widths = [room * share // sum(shares) for share in shares]
    for column, width in zip(drawn.columns, widths, strict=True):
        column.width = width  # for LibreOffice; Word reads the widths of cells
    for row, cells in zip(drawn.rows, lines, strict=True):
        for place, cell, width in zip(row.cells, cells, widths, strict=True):
            place.width = width
            run = place.paragraphs[0].add_run(cell_text(cell))
            run.font.size, run.bold = Pt(CELL_PT), cell.strong or None
    drawn.rows[0]._tr.get_or_add_trPr().append(OxmlElement("w:tblHeader"))  # repeated on every page
    document.add_paragraph()


def cell_text(cell: Cell) -> str:
    """A cell in one line: the value, its standard deviation and its interval."""
    spread = f" ± {cell.spread}" if cell.spread else ""
    return f"{cell.text}{spread}" + (f" ({cell.interval})" if cell.interval else "")
