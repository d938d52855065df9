"""Pages are read back as they were written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from asmil.errors import AsmilError
from asmil.reporting import Cell, Document, Figure, Folded, Heading, Note, Section, SideBySide, Table
from asmil.reporting.page import html_document
from asmil.reporting.read_page import read_page

TABLE = Table(
    ["a", "b_c"],
    [
        [Cell("r/un_one", ("method, preset",)), Cell("0.9", (), "0.8 to 1", "0.1", "seeds", strong=True)],
        [Cell("x & <y>"), Cell("3", shade=0.25)],
        [Cell("z"), Cell("< 0.001", ("t = 2",))],
    ],
    caption="What 5 % means: `asmil x --y`.",
    emphasis=True,
)
FIGURES = [Figure("<svg/>", "one", "Caption."), Figure(b"\x89PNG", "two")]


def test_a_page_is_read_back(tmp_path):
    blocks = ["A paragraph.", TABLE, Note("Beware."), Heading("Part"), SideBySide(FIGURES), "The end."]
    document = Document("Kind", "Ti & tle", "An `answer`.", [Section("First", blocks)], "About.")
    folded = Folded("More", [TABLE])
    page = tmp_path / "page.html"
    page.write_text(html_document(replace(document, sections=[Section("First", [*blocks, folded])], reading=["How."])))
    assert read_page(page) == document


def test_another_page_is_refused(tmp_path):
    page = tmp_path / "other.html"
    page.write_text("<html><body><p>Hello</p></body></html>")
    with pytest.raises(AsmilError, match=r"other\.html"):
        read_page(page)
