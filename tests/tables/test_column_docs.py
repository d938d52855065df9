"""The page on files lists every spelling of a column that is understood."""

from itertools import chain

from asmil.tables.columns import ALIASES, COLUMNS
from shared_data import REPOSITORY

PAGE = (REPOSITORY / "docs" / "files.md").read_text(encoding="utf-8")


def test_every_column_and_spelling_is_documented():
    assert [name for name in COLUMNS if f"| `{name}` |" not in PAGE] == []
    listed = PAGE.lower().replace(".", "_")
    spellings = list(chain.from_iterable(ALIASES.values()))
    # the same words without the separator need no place of their own
    joined = {spelling.replace("_", "") for spelling in spellings if "_" in spelling}
    assert [one for one in spellings if f"`{one}`" not in listed and one not in joined] == []
