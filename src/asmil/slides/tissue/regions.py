"""The result of tissue detection: outlines, a mask, and notes for the user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asmil.settings.made_from import StoredContent
from asmil.tables.arrays import Booleans

Polygon = NDArray[np.int32]
"""Points x 2, (x, y) in level-0 pixels; closed, without repeating the first point."""
Mask = Booleans


@dataclass(frozen=True)
class Region:
    """A piece of tissue: its outline and the holes in it."""

    outline: Polygon
    holes: tuple[Polygon, ...] = ()


@dataclass(frozen=True)
class TissueFile:
    """A file from which tissue was read, and how much of the slide it marks compared with the automatic tissue.

    file, content: its name, and its size and checksum
    kind: mask, or the tool of its outlines
    automatic_share: share of the slide that is tissue by method `auto`
    added_share, removed_share: share of the slide that is tissue only in the file, and only by method `auto`
    """

    file: str
    kind: str
    content: StoredContent
    automatic_share: float
    added_share: float
    removed_share: float


@dataclass(frozen=True)
class Tissue:
    """The tissue of a slide.

    mask: rows x columns, tissue without its holes
    downsample: level-0 pixels of a mask pixel, (x, y)
    threshold: the threshold on the saturation (or on the signal), for documentation
    notes: what the user should check; empty if nothing
    source: the file that it was read from, if it was
    """

    regions: tuple[Region, ...]
    mask: Mask
    downsample: tuple[float, float]
    threshold: float
    notes: tuple[str, ...] = ()
    source: TissueFile | None = None

    @property
    def share(self) -> float:
        return float(self.mask.mean()) if self.mask.size else 0.0
