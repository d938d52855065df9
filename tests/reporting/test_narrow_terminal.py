"""A table that is too wide for the window loses neither a column nor the name of a row."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from asmil.reporting import Cell, Document, Section, Table, print_document, print_table

NAMES = ("normal", "a-very-long-name-of-a-run-folder")
COLUMNS = ("precision", "recall", "specificity", "F1", "AUC", "slides")


@pytest.mark.parametrize("width", [40, 60, 80, 90, 200])
def test_every_value_and_name_is_printed(width):
    rows = [[Cell(name), *(Cell(f"0.{i}05", interval="0.667 to 1.000") for i in range(1, 7))] for name in NAMES]
    table = Table(["class", *COLUMNS], rows, title="each class", in_terminal=True)
    shown = io.StringIO()
    print_document(Document("kind", "title", "answer", [Section("all", [table])]), Console(file=shown, width=width))
    text = shown.getvalue()
    assert all(text.count(f"0.{i}05") == 2 for i in range(1, 7))
    assert all(column in text for column in COLUMNS)
    joined = "".join(text.split())
    assert NAMES[0] in text
    assert NAMES[1] in text or NAMES[1][:10] in joined
    assert max(map(len, text.splitlines())) <= width


WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=14), min_size=1, max_size=5).map(" ".join)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=2, max_size=4)),
    width=st.integers(40, 120),
)
def test_no_word_is_cut_at_any_width(rows, width):
    titles, *cells = rows
    columns = tuple(f"{place} {title}" for place, title in enumerate(titles))
    written = io.StringIO()
    print_table(Table(columns, cells), Console(file=written, width=width))
    shown = set(written.getvalue().replace(":", " ").split())
    assert {word for row in cells for cell in row for word in cell.split()} <= shown
