"""Alarms and notes that every picture and file with a map shows."""

from __future__ import annotations

from dataclasses import dataclass

from asmil.explain.canvas import ALARM_INK, SOFT_INK, wrapped, write
from asmil.slides.image import Pixels

LINE_GAP = 8


@dataclass(frozen=True)
class Caveats:
    """alarms: of the runs, one sentence each; notes: of this slide, a few words each."""

    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str]:
        """One paragraph per alarm, and one for all notes."""
        noted = [f"Note: {'; '.join(self.notes)}."] if self.notes else []
        return [*(f"Alarm: {alarm}" for alarm in self.alarms), *noted]

    def height(self, width: int, size: int) -> int:
        return sum(len(wrapped(text, width, size)) for text in self.texts) * (size + LINE_GAP)

    def draw(self, picture: Pixels, left: int, top: int, width: int, size: int) -> None:
        """Write the paragraphs into a picture."""
        for number, text in enumerate(self.texts):
            color = ALARM_INK if number < len(self.alarms) else SOFT_INK
            for line in wrapped(text, width, size):
                write(picture, line, left, top, size, color=color)
                top += size + LINE_GAP


NO_CAVEATS = Caveats()
