"""Findings about the attention on a slide: it is flat, or most of it is on one tile."""

from __future__ import annotations

import numpy as np

from asmil.attention.measures import FLAT_SHARE, effective_tiles
from asmil.reporting.formats import format_alike
from asmil.tables.arrays import Floats

FLAT_PEAK = 2.0
"""The largest weight of flat attention is below this multiple of the average."""
ONE_TILE_SHARE = 0.5
FEWEST_TILES = 3


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
