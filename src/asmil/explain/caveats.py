"""Alarms and notes that every picture and file with a map shows, such as that attention is flat on a slide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asmil.attention.measures import FLAT_SHARE, effective_tiles
from asmil.explain.canvas import ALARM_INK, SOFT_INK, wrapped, write
from asmil.reporting.formats import format_alike
from asmil.slides.image import Pixels
from asmil.tables.arrays import Floats

LINE_GAP = 8
FLAT_PEAK = 2.0
"""The largest weight of flat attention is below this multiple of the average."""
ONE_TILE_SHARE = 0.5
FEWEST_TILES = 3


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


def attention_finding(values: Floats, average: float) -> str:
    """The finding in a few words, with its numbers; empty if there is none.

    values: the weights of the tiles of a slide; average: that of the average tile

    >>> attention_finding(np.array([0.24, 0.25, 0.26, 0.25]), 0.25)
    'attention is flat on this slide (0.96 to 1.04 times the average tile)'
    """
    known = values[~np.isnan(values)]
    total = float(known.sum())
    if len(known) < FEWEST_TILES or total <= 0:
        return ""
    relative = known / average
    if relative.max() < FLAT_PEAK and effective_tiles(known / total) > FLAT_SHARE * len(known):
        low, high = format_alike([float(relative.min()), float(relative.max())])
        return f"attention is flat on this slide ({low} to {high} times the average tile)"
    share = float(known.max()) / total
    return f"one tile has {100 * share:.0f} % of the attention on this slide" if share > ONE_TILE_SHARE else ""
