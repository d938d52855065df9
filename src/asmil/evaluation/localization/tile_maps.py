"""Compare maps of positive tiles with annotations: Dice, specificity, missed regions, tumor share of a tile.

A tile at (x, y) with side t covers the rows floor(y / d) .. floor((y + t) / d) - 1 of a mask with d level-0 pixels per
mask pixel, and columns likewise, within the mask. The truth is the annotation itself, without a margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.source import FeatureInfo
from asmil.cohort.tile_truth import read_tile_truth
from asmil.errors import AsmilError
from asmil.evaluation.localization.lesions import CAMELYON_UM_PER_PIXEL, MASK_DOWNSAMPLE, label_regions
from asmil.explain.tile_map import SlideFrame
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks.checked_arrays import corners_of, flags_of, mask_of, numbers_of, one_per_tile

Integers = npt.NDArray[np.intp]


def tile_mask(
    coords: npt.ArrayLike,
    positive: npt.ArrayLike,
    tile_px_level0: float,
    shape: tuple[int, int],
    downsample: float = MASK_DOWNSAMPLE,
) -> Booleans:
    """H x W: the union of the rectangles of the positive tiles; `coords` are N x 2 upper left corners (x, y)."""
    corners, is_positive = corners_of(coords), flags_of("positive", positive)
    one_per_tile(corners, is_positive, "values of positive")
    mask = np.zeros(shape, dtype=bool)
    chosen = corners[is_positive]
    for top, bottom, left, right in np.stack(_rectangles(chosen, tile_px_level0, shape, downsample), axis=1).tolist():
        mask[top:bottom, left:right] = True
    return mask


def tile_overlap(
    truth: npt.ArrayLike, coords: npt.ArrayLike, tile_px_level0: float, downsample: float = MASK_DOWNSAMPLE
) -> Floats:
    """The share of tumor among the mask pixels of each tile (N values); 0 for a tile outside the mask."""
    tumor_mask = mask_of("tumor mask", truth)
    top, bottom, left, right = _rectangles(corners_of(coords), tile_px_level0, tumor_mask.shape, downsample)
    sums = np.pad(tumor_mask.cumsum(axis=0, dtype=np.int32).cumsum(axis=1, dtype=np.int32), ((1, 0), (1, 0)))
    tumor = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return np.asarray(tumor / np.maximum((bottom - top) * (right - left), 1))


def dice(predicted: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """2 |P and T| / (|P| + |T|) of two masks, or of two lists of tiles; 1 if both are empty.

    >>> dice([True, True, False], [True, False, False])
    0.6666666666666666
    """
    marked, there = (flags_of(name, mask) for name, mask in (("predicted", predicted), ("truth", truth)))
    if marked.shape != there.shape:
        raise AsmilError(f"Dice needs two masks of the same shape, not {marked.shape} and {there.shape}")
    total = int(marked.sum()) + int(there.sum())
    return 2 * int((marked & there).sum()) / total if total else 1.0


def specificity(scores: npt.ArrayLike, threshold: float = 0.5, threshold_is_positive: bool = True) -> float:
    """The share of negative tiles on a normal slide, ideally 1; nan without tiles.

    A score equal to the threshold counts as positive; in MS-CLAM it is negative (threshold_is_positive=False).
    """
    values = numbers_of("scores", scores)
    negative = values < threshold if threshold_is_positive else values <= threshold
    return float(negative.mean()) if values.size else float("nan")


def highest_specificity(n_tiles: int) -> float:
    """The highest possible specificity under min-max scaling, which sets one tile of every slide to 1: 1 - 1/N."""
    return 1 - 1 / n_tiles


def regions_found(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> Booleans:
    """For each region of the truth (8-connected, numbered row by row), whether it contains a predicted pixel."""
    there, marked = mask_of("tumor mask", truth), mask_of("predicted mask", predicted)
    if there.shape != marked.shape:
        raise AsmilError(f"both masks must have the same shape, not {there.shape} and {marked.shape}")
    labels, count = label_regions(there)
    hit = np.bincount(labels[marked], minlength=count + 1)
    return np.asarray(hit[1:] > 0)


def all_tumor_tiles_positive(overlap: npt.ArrayLike, positive: npt.ArrayLike) -> bool:
    """Whether every tile with tumor is positive: the strict reading of "no region is missed"."""
    return bool(np.asarray(positive, dtype=bool)[np.asarray(overlap) > 0].all())


def without_last_tiles(mask: Booleans, tile_px_level0: float, downsample: float = MASK_DOWNSAMPLE) -> Booleans:
    """The mask as MS-CLAM uses it for Dice: empty in the last rows and columns, one tile wide."""
    side = int(tile_px_level0 // downsample)
    cleared = np.zeros_like(mask)
    height, width = max(mask.shape[0] - side, 0), max(mask.shape[1] - side, 0)
    cleared[:height, :width] = mask[:height, :width]
    return cleared


def _rectangles(
    corners: Floats, tile_px_level0: float, shape: tuple[int, ...], downsample: float
) -> tuple[Integers, Integers, Integers, Integers]:
    """First row, row after the last, first column, column after the last of every tile, within the mask."""
    if not downsample > 0:
        raise AsmilError(f"downsample (level-0 pixels per side of a mask pixel) must be above 0, not {downsample:g}")
    if not tile_px_level0 >= downsample:
        raise AsmilError(
            f"tiles of {tile_px_level0:g} px are smaller than a mask pixel of {downsample:g} px; use a smaller "
            "downsample"
        )
    ends = np.stack([corners, corners + tile_px_level0]) // downsample
    (left, top), (right, bottom) = np.clip(ends, 0, [shape[1], shape[0]]).astype(np.intp).transpose(0, 2, 1)
    return top, bottom, left, right


@dataclass(frozen=True)
class MaskFrame(SlideFrame):
    """A slide and its tiles, and the grid of its masks.

    size_is_stated: whether the feature file states the size of the slide; otherwise it is the extent of the tiles
    downsample: level-0 pixels along the side of a mask pixel; without a resolution, that of CAMELYON16 is assumed
    """

    size_is_stated: bool = True
    downsample: int = MASK_DOWNSAMPLE

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the mask."""
        return math.ceil(self.size_px[1] / self.downsample), math.ceil(self.size_px[0] / self.downsample)

    @property
    def um_per_pixel(self) -> float:
        """Side of a mask pixel in microns."""
        return CAMELYON_UM_PER_PIXEL if self.mpp is None else self.downsample * self.mpp


def frame_of(slide: str, info: FeatureInfo, coords: npt.NDArray[np.int64], mpp: float | None) -> MaskFrame:
    """The frame of a slide, from the metadata of its feature file.

    mpp: from the manifest, for files that do not state it
    The side of a mask pixel is a power of two of level-0 pixels, as near as possible to CAMELYON16's 7.776 um and
    never larger than a tile; 32 if the resolution is unknown.
    """
    side_um = info.tile_side_um
    mpp = info.mpp or mpp or (side_um / info.tile_px_level0 if side_um and info.tile_px_level0 else None)
    tile_px = info.tile_side_level0(mpp)
    if tile_px is None:
        raise AsmilError(f"{slide}: the tile size at level 0 is unknown ({info.source}); extract the features again")
    stated = info.slide_width_px is not None and info.slide_height_px is not None
    width, height = np.ceil(coords.max(axis=0) + tile_px).astype(int).tolist()
    size_px = (info.slide_width_px or width, info.slide_height_px or height) if stated else (width, height)
    wanted = MASK_DOWNSAMPLE if mpp is None else 2 ** max(0, round(math.log2(CAMELYON_UM_PER_PIXEL / mpp)))
    downsample = min(wanted, 2 ** int(math.log2(max(tile_px, 1))))
    return MaskFrame(slide, coords, float(tile_px), size_px, mpp, stated, downsample)


class Truth(Protocol):
    """A source of tumor masks."""

    def tumor(self, slide: str, frame: MaskFrame) -> Booleans | None:
        """The tumor mask of a slide; None if nothing is known about the slide."""

    def tiles(self, slide: str, frame: MaskFrame) -> Booleans | None:
        """Which tiles are tumor, if that is stated; None: those that overlap the mask."""

    def notes(self) -> Iterator[str]:
        """Caveats about how the truth was read."""


class TileTruth:
    """Tumor tiles from a table; `asmil synthetic` writes such a table."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        table = read_tile_truth(self._path)
        self._by_slide = {str(slide): rows for slide, rows in table.groupby("slide")}

    def tumor(self, slide: str, frame: MaskFrame) -> Booleans | None:
        """The union of the tiles with tumor."""
        rows = self._by_slide.get(slide)
        if rows is None:
            return None
        coords = rows[["x", "y"]].to_numpy(dtype=np.float64)
        return tile_mask(coords, rows["tumor"].to_numpy(dtype=bool), frame.tile_px, frame.shape, frame.downsample)

    def tiles(self, slide: str, frame: MaskFrame) -> Booleans | None:
        """The rows of the tiles, also where tiles overlap; None if a tile has no row."""
        rows = self._by_slide.get(slide)
        if rows is None:
            return None
        stated = rows["tumor"].astype(bool).groupby([rows["x"], rows["y"]]).any()
        known = stated.reindex(pd.MultiIndex.from_arrays([frame.coords[:, 0], frame.coords[:, 1]]))
        return None if known.isna().any() else known.to_numpy(dtype=bool)

    def notes(self) -> Iterator[str]:
        """Where the truth comes from."""
        yield f"the truth is per tile ({self._path.name}), not from outlines"
