"""Docstrings as Markdown: a list of `name: meaning` becomes a list, an example becomes a code block."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.+)$")


def to_markdown(text: str) -> str:
    """The Markdown of a docstring."""
    lines: list[str] = []
    in_example = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>> ") and not in_example:
            lines += ["", "```pycon"]
            in_example = True
        elif not line.strip() and in_example:
            lines.append("```")
            in_example = False
        found = None if in_example else ARGUMENT.match(line)
        if found:
            lines += ["", f"- `{found[1]}`: {found[2]}"]
        else:
            lines.append(line)
    return "\n".join([*lines, "```"] if in_example else lines)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
