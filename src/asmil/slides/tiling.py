"""Place tiles on tissue: their side at level 0, their corners, and which of them are empty glass or black."""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError
from asmil.slides.clam_grid import clam_coordinates
from asmil.slides.image import Pixels, Resolution, SlideImage, choose_level
from asmil.slides.pixel_regions import SUBPIXEL, resize, stretch
from asmil.slides.settings import TilingConfig, TissueConfig
from asmil.slides.tissue.clam import saturation
from asmil.slides.tissue.regions import Mask, Tissue
from asmil.tables.arrays import Booleans, Floats, Integers

ENLARGING_TOLERATED = 1.05
"""Scanners call anything from 0.46 to 0.52 um/px 20x; so little upsampling does not matter."""
ROUNDING = 1e-9
GROUP_PX = 2048
"""Side of a group of neighbors in pixels of the level, such that its decoded segments fit into a reader's cache."""
GROUP_TILES = 64


def tile_side_level0(tiling: TilingConfig, resolution: Resolution, where: str) -> int:
    """The side of a tile in level-0 pixels, round(tile_um / mpp).

    where: the slide, for the error message

    A slide that is coarser than its tiles (by more than 5 %) is an error, unless `tiling.enlarge` is set.
    """
    if resolution.mpp > tiling.mpp * ENLARGING_TOLERATED and not tiling.enlarge:
        raise AsmilError(
            f"{where}: the slide has {resolution.mpp:.4g} um/px ({resolution.source}), which is coarser than the tiles "
            f"({tiling.tile_um:g} um in {tiling.tile_px} px, {tiling.mpp:.4g} um/px); use coarser tiles "
            f"(tiling.tile_um={resolution.mpp * tiling.tile_px:.4g}), or upsample them (tiling.enlarge=true)"
        )
    return max(1, round(tiling.tile_um / resolution.mpp))


def place_tiles(
    image: SlideImage, tissue: Tissue, tissue_config: TissueConfig, tiling: TilingConfig, tile_px_level0: int
) -> Integers:
    """The upper left corners of a slide's tiles at level 0, N x 2, column by column from the left, each from the top.

    clam: a separate grid for each region; otherwise one grid from (0, 0), see `grid_tiles`.
    """
    step = max(1, round(tile_px_level0 * (1 - tiling.overlap)))
    if tissue_config.method == "clam":
        check, padding = tissue_config.clam.contour_check, tissue_config.clam.padding
        return clam_coordinates(tissue, image.size, (tile_px_level0, tile_px_level0), (step, step), check, padding)
    return grid_tiles(tissue.mask, tissue.downsample, image.size, tile_px_level0, step, tiling.min_tissue)


def grid_tiles(
    mask: Mask, downsample: tuple[float, float], size: tuple[int, int], side: int, step: int, min_tissue: float
) -> Integers:
    """The tiles of a grid from (0, 0) with some tissue and a tissue share of at least `min_tissue`.

    A tile may extend beyond the slide if its center is inside; the part outside is not tissue. The first column and
    row always exist, so that a slide smaller than half a tile has one tile.
    """
    x, y = (np.arange(max(1, -((side // 2 - length) // step))) * step for length in size)
    share = tissue_share(mask, downsample, x, y, side)
    kept = (share > ROUNDING) & (share >= min_tissue - ROUNDING)
    columns, rows = np.nonzero(kept)
    return np.stack([x[columns], y[rows]], axis=1).astype(np.int64)


def parent_tiles(coords: Integers, side: int, parent_side: int) -> Integers:
    """The tiles of a coarser grid from (0, 0) that contain the centers of tiles, M x 2, in the order of `place_tiles`.

    coords, side: the upper left corners (N x 2) and the side of the tiles, in level-0 pixels

    If `parent_side` is a multiple of `side`, every tile of a grid without overlap lies within one parent.
    """
    return np.unique((coords + side // 2) // parent_side, axis=0) * parent_side


def tissue_share(mask: Mask, downsample: tuple[float, float], x: Integers, y: Integers, side: int) -> Floats:
    """The share of tissue in the tile at every (x, y), columns x rows; partly covered mask pixels count partly."""
    in_rows = _between(mask, y / downsample[1], (y + side) / downsample[1])
    in_tiles = _between(in_rows.T, x / downsample[0], (x + side) / downsample[0])
    return in_tiles * (downsample[0] * downsample[1] / side**2)


def _between(values: Mask | Floats, low: Floats, high: Floats) -> Floats:
    """The sums over the first axis between fractional positions; values outside are 0."""
    kind = np.int32 if values.dtype == np.bool_ else np.float64
    total = np.zeros((len(values) + 1, *values.shape[1:]), dtype=kind)
    np.cumsum(values, axis=0, dtype=kind, out=total[1:])
    return _interpolated(total, high) - _interpolated(total, low)


def _interpolated(total: NDArray[np.int32] | Floats, positions: Floats) -> Floats:
    last = len(total) - 1
    inside = np.clip(positions, 0, last)
    whole = inside.astype(np.int64)
    part = (inside - whole)[:, None]
    return total[whole] * (1 - part) + total[np.minimum(whole + 1, last)] * part


def keep_tiles(tiles: NDArray[np.uint8], white: float | None, black: float | None) -> Booleans:
    """Which tiles (N x height x width x 3) have a mean saturation of at least `white` and are not black.

    black: a tile whose three channel means are all below this is dropped; None: no such check
    """
    kept = np.ones(len(tiles), dtype=np.bool_)
    if white is not None:
        kept &= np.array([_means(saturation(tile))[0] >= white for tile in tiles], dtype=np.bool_)
    if black is not None:
        kept &= np.array([_means(tile).max() >= black for tile in tiles], dtype=np.bool_)
    return kept


def _means(pixels: NDArray[np.uint8]) -> Floats:
    """Means per channel, as quotients of integers; cv2.mean multiplies by a rounded reciprocal instead."""
    sums: Floats = np.array(cv2.sumElems(pixels), dtype=np.float64)
    return sums / float(pixels.shape[0] * pixels.shape[1])


class TileReader:
    """Reads squares of `tile_px_level0` level-0 pixels as `tile_px` pixels.

    It reads the coarsest level that is not coarser than the tiles, and area-averages the rest. Pixels outside the
    slide are white. Reading is thread-safe.
    """

    def __init__(self, image: SlideImage, tile_px_level0: int, tile_px: int) -> None:
        self.image = image
        self.tile_px_level0 = tile_px_level0
        self.tile_px = tile_px
        self.level = choose_level(image.downsamples, tile_px_level0 / tile_px)
        self._downsample = image.downsamples[self.level]

    def groups(self, coords: Integers) -> list[Integers]:
        """Groups of tile indices to be read together, each tile once.

        Neighbors share tiles of the file, which are decoded only once if they are read together.
        """
        if len(coords) == 0:
            return []
        side = np.maximum(np.array(self._downsample) * GROUP_PX, self.tile_px_level0)
        cells = np.floor((coords - coords.min(axis=0)) / side).astype(np.int64)
        order = np.lexsort((coords[:, 0], coords[:, 1], cells[:, 0], cells[:, 1]))
        ends = np.flatnonzero(np.any(np.diff(cells[order], axis=0) != 0, axis=1)) + 1
        return [
            cell[start : start + GROUP_TILES]
            for cell in np.split(order, ends)
            for start in range(0, len(cell), GROUP_TILES)
        ]

    def read(self, coords: Integers) -> NDArray[np.uint8]:
        """The tiles with their corners at these level-0 positions, n x tile_px x tile_px x 3."""
        tiles = np.empty((len(coords), self.tile_px, self.tile_px, 3), dtype=np.uint8)
        for tile, (x, y) in zip(tiles, coords.tolist(), strict=True):
            tile[:] = self._tile(x, y)
        return tiles

    def _tile(self, x: int, y: int) -> Pixels:
        extent_x, extent_y = (self.tile_px_level0 / downsample for downsample in self._downsample)
        width, height = (max(1, math.ceil(extent - SUBPIXEL)) for extent in (extent_x, extent_y))
        pixels = self.image.read(x, y, self.level, width, height)
        return resize(stretch(pixels, extent_x, extent_y), self.tile_px, self.tile_px)
