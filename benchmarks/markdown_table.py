"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """The first `words` columns are set left, all others right."""
    rule = ["---"] * words + ["---:"] * (len(headers) - words)
    return "\n".join("| " + " | ".join(line) + " |" for line in [headers, rule, *rows])
