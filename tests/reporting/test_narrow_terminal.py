"""A table that is too wide for the window loses neither a column nor the name of a row."""

import io

import pytest
from rich.console import Console

from asmil.reporting import Cell, Document, Section, Table, print_document

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
