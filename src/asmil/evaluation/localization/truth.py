"""The tumor masks of slides: what they have in common, and those from a table of tiles with known truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asmil.cohort.tile_truth import read_tile_truth
from asmil.evaluation.localization.tile_maps import Frame, tile_mask

Mask = npt.NDArray[np.bool_]


class Truth(Protocol):
    """A source of tumor masks."""

    def tumor(self, slide: str, frame: Frame) -> Mask | None:
        """The tumor mask of a slide; None if nothing is known about the slide."""

    def notes(self) -> Iterator[str]:
        """Caveats about how the truth was read."""


class TileTruth:
    """Tumor tiles from a table; `asmil synthetic` writes such a table."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        table = read_tile_truth(self._path)
        self._by_slide = {str(slide): rows for slide, rows in table.groupby("slide")}

    def tumor(self, slide: str, frame: Frame) -> Mask | None:
        """The union of the tiles with tumor."""
        rows = self._by_slide.get(slide)
        if rows is None:
            return None
        coords = rows[["x", "y"]].to_numpy(dtype=np.float64)
        return tile_mask(coords, rows["tumor"].to_numpy(dtype=bool), frame.tile_px, frame.shape, frame.downsample)

    def notes(self) -> Iterator[str]:
        """Where the truth comes from."""
        yield f"the truth is per tile ({self._path.name}), not from outlines"
