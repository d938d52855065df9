"""Values of tiles for the browser: one byte per tile and recording, for each scale that a map can have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.explain.caveats import attention_finding
from asmil.explain.color_scale import ColorScale, color_scale, percentiles, relative_positions, value_range
from asmil.explain.contact_sheet import bottom_tiles, top_tiles
from asmil.tables.arrays import Bytes, Floats

HIGHEST = 255
TILES_LISTED = 24
"""Highest and lowest tiles of each recording, for the strip below the slide."""


@dataclass(frozen=True)
class TileValues:
    """M recordings of a map during a training, or the map of the trained model (M = 1).

    kind: what the values are, as on the page
    values: M x N
    epochs: of the recordings; empty for the trained model
    jsd: Jensen-Shannon divergence of each recording from the one before; None for the first
    kept: the recording whose weights were kept, if known
    averages: for weights, such as attention: the mean over all tiles of the bag in each recording
    explained: the class, label or number that the map explains, if any
    """

    kind: str
    values: Floats
    epochs: tuple[float, ...] = ()
    jsd: tuple[float | None, ...] = ()
    kept: int | None = None
    note: str = ""
    explained: str = ""
    averages: tuple[float, ...] | None = None

    @property
    def scales(self) -> list[str]:
        """The scales that the map can be drawn with, the default first."""
        return ["linear", "percentile"] if self.averages is None else ["relative", "percentile", "linear"]

    def color_scale(self, name: str, moment: int) -> ColorScale:
        """The scale of one recording."""
        values, average = self.values[moment], None if self.averages is None else self.averages[moment]
        if name == "percentile":
            return color_scale(values, "percentile", average=average)
        if name == "relative" and average is not None:
            return color_scale(values, "relative", average=average)
        low, high = value_range(self.values, self.kind)
        return color_scale(values, "absolute", None, (low, high), low < 0, average)

    def codes(self, name: str) -> Bytes:
        """M x N positions on a scale, from 0 to 255."""
        if name == "percentile":
            return percentile_bytes(self.values)
        if name == "relative":
            averages = np.asarray(self.averages, dtype=np.float64)[:, None]
            return np.rint(HIGHEST * relative_positions(self.values / averages)).astype(np.uint8)
        return linear_bytes(self.values, *value_range(self.values, self.kind))

    @property
    def findings(self) -> list[str]:
        """Findings about the attention of each recording; empty for other maps."""
        if self.averages is None:
            return []
        return [attention_finding(row, average) for row, average in zip(self.values, self.averages, strict=True)]


def percentile_bytes(values: Floats) -> Bytes:
    """M x N ranks within each recording, from 0 (lowest) to 255 (highest); equal values share their mean rank.

    >>> percentile_bytes(np.array([[0.1, 0.3, 0.2]])).tolist()
    [[0, 255, 128]]
    """
    return np.stack([np.rint(HIGHEST * percentiles(row, np.sort(row))).astype(np.uint8) for row in values])


def linear_bytes(values: Floats, low: float, high: float) -> Bytes:
    """M x N values from `low` (0) to `high` (255)."""
    if high <= low:
        return np.zeros(values.shape, dtype=np.uint8)
    return np.asarray(np.rint((values - low) * (HIGHEST / (high - low))).clip(0, HIGHEST), dtype=np.uint8)


def extremes(values: Floats, count: int = TILES_LISTED) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The tiles with the highest and the lowest values of each recording, M x count each, the most extreme first.

    >>> [tiles.tolist() for tiles in extremes(np.array([[0.1, 0.3, 0.2]]), 2)]
    [[[1, 2]], [[0, 2]]]
    """
    highest = np.stack([top_tiles(row, count) for row in values])
    lowest = np.stack([bottom_tiles(row, count) for row in values])
    return highest.astype(np.int32), lowest.astype(np.int32)
