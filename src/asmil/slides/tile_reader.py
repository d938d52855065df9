"""Read tiles of a slide at a given resolution."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels, SlideImage
from asmil.slides.levels import choose_level, true_downsamples
from asmil.slides.pixel_regions import SUBPIXEL, resize, stretch

GROUP_PX = 2048
"""Side of a group of neighbors in pixels of the level, such that its decoded segments fit into a reader's cache."""
GROUP_TILES = 64


class TileReader:
    """Reads squares of `tile_px_level0` level-0 pixels as `tile_px` pixels.

    It reads the coarsest level that is not coarser than the tiles, and area-averages the rest. Pixels outside the
    slide are white. Reading is thread-safe.
    """

    def __init__(self, image: SlideImage, tile_px_level0: int, tile_px: int) -> None:
        self.image = image
        self.tile_px_level0 = tile_px_level0
        self.tile_px = tile_px
        downsamples = true_downsamples(image.level_sizes)
        self.level = choose_level(downsamples, tile_px_level0 / tile_px)
        self._downsample = downsamples[self.level]

    def groups(self, coords: NDArray[np.int64]) -> list[NDArray[np.int64]]:
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

    def read(self, coords: NDArray[np.int64]) -> NDArray[np.uint8]:
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
