"""Display results in notebooks and when printed."""

from __future__ import annotations

import html
from abc import abstractmethod
from typing import Any

import pandas as pd

DIGITS = 3


class Displayed:
    """A result that is displayed as a title, tables and warnings."""

    @abstractmethod
    def display_parts(self) -> tuple[str, list[pd.DataFrame], list[str]]:
        """The title, the tables and the warnings."""

    def __str__(self) -> str:
        title, tables, warnings = self.display_parts()
        texts = [table.to_string(float_format=_number) for table in tables]
        notes = "\n".join(f"warning: {text}" for text in warnings)
        return "\n\n".join([title, *texts, *([notes] if notes else [])])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        title, tables, warnings = self.display_parts()
        shown = [table.to_html(float_format=_number, border=0) for table in tables]
        paragraphs = [f"<p>warning: {html.escape(text)}</p>" for text in warnings]
        return "\n".join([f"<p>{html.escape(title)}</p>", *shown, *paragraphs])


def _number(value: float) -> str:
    return f"{value:.{DIGITS}f}"
