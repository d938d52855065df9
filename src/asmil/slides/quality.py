"""The quality of tiles: whether they are in focus, and whether the tissue in them is folded.

Focus. Let v(s) be the variance of the Laplacian of the gray tile at s microns per pixel (area-averaged). With
s0 = max(1 um, 2 pixels of the tile), since single pixels are smoothed by scanners and compression:

    focus = (v(s0) + 1) / (max(v(2 s0), v(4 s0), v(8 s0)) + 1)

Blur removes fine detail and leaves coarse detail, so that the ratio falls whatever the contrast of the tissue. The 1 is
the noise of compression: a tile without any detail, such as mucus, is not called blurred.

Fold. At 8 um per pixel, with optical densities OD = -log10((I + 1) / 256) of red, green and blue, let the density of a
pixel be the mean of the three, and its color the largest minus the smallest. Both are proportional to the thickness of
the tissue, and dense nuclei are darker but hardly more colorful. A pixel is folded if it has at least 1.5 times the
density and 2 times the color of the median pixel of the slide's tissue, and lies in a square of 3 x 3 such pixels:

    fold = share of folded pixels in the tile
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels, Resolution
from asmil.slides.overview import Overview
from asmil.slides.pixel_regions import resize
from asmil.slides.settings import Artifact, QualityConfig
from asmil.slides.tissue.regions import Tissue
from asmil.tables.arrays import Booleans, Floats32

Reduced = NDArray[np.integer | np.floating]
"""As OpenCV returns pictures."""
FINEST_UM, FINEST_PX = 1.0, 2.0
COARSER = 3
"""How often the resolution is halved."""
NOISE = 1.0
FOLD_UM = 8.0
FOLDED_DENSITY, FOLDED_COLOR = 1.5, 2.0
FOLD_WIDTH_PX = 3
STAINED = 0.06
"""Mean optical density above which a pixel of the tissue mask is stained, and not glass between tissue."""
MANY = 0.1
"""Share of the tiles above which an artifact is noted."""
SMALLEST_PX = 4
"""Of the side of a reduced tile: the Laplacian of fewer pixels says nothing."""
OPTICAL_DENSITY = -np.log10((np.arange(256, dtype=np.float32) + 1) / 256)


@dataclass(frozen=True)
class Stain:
    """Density and color of the median pixel of a slide's tissue, see the module's docstring."""

    density: float
    color: float


@dataclass(frozen=True)
class TileQuality:
    """Focus and fold of tiles, N each."""

    focus: Floats32
    fold: Floats32

    @classmethod
    def unmeasured(cls, n_tiles: int) -> TileQuality:
        """Space for N tiles."""
        return cls(np.full(n_tiles, np.nan, np.float32), np.full(n_tiles, np.nan, np.float32))

    def put(self, rows: NDArray[np.integer], part: TileQuality) -> None:
        """Enter the values of some tiles."""
        self.focus[rows], self.fold[rows] = part.focus, part.fold

    def __getitem__(self, rows: Booleans) -> TileQuality:
        return TileQuality(self.focus[rows], self.fold[rows])

    def flags(self, config: QualityConfig) -> dict[Artifact, Booleans]:
        """Which tiles have which artifact."""
        return {"blurred": self.focus < config.min_focus, "folded": self.fold > config.max_fold}


def measure_quality(tiles: NDArray[np.uint8], mpp: float, stain: Stain) -> TileQuality:
    """Focus and fold of tiles (N x p x p x 3) of `mpp` microns per pixel."""
    return TileQuality(
        np.array([tile_focus(tile, mpp) for tile in tiles], np.float32),
        np.array([tile_fold(tile, mpp, stain) for tile in tiles], np.float32),
    )


def tile_focus(tile: Pixels, mpp: float) -> float:
    """Fine detail relative to coarse detail."""
    side = _reduced_side(tile, max(FINEST_PX, FINEST_UM / mpp))
    small = cv2.resize(tile, (side, side), interpolation=cv2.INTER_AREA)
    gray: Reduced = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float32)
    reduced, coarse = gray, []
    for _ in range(COARSER):
        side = _reduced_side(reduced, 2)
        reduced = cv2.resize(reduced, (side, side), interpolation=cv2.INTER_AREA)
        coarse.append(_detail(reduced))
    return (_detail(gray) + NOISE) / (max(coarse) + NOISE)


def _reduced_side(picture: NDArray[np.generic], factor: float) -> int:
    return max(min(SMALLEST_PX, picture.shape[0]), round(picture.shape[0] / factor))


def _detail(gray: Reduced) -> float:
    """The variance of the Laplacian."""
    return float(cv2.Laplacian(gray, cv2.CV_32F)[1:-1, 1:-1].var())


def tile_fold(tile: Pixels, mpp: float, stain: Stain) -> float:
    """The share of folded tissue."""
    side = _reduced_side(tile, max(1.0, FOLD_UM / mpp))
    density, color = _stain_maps(resize(tile, side, side))
    folded = (density > FOLDED_DENSITY * stain.density) & (color > FOLDED_COLOR * stain.color)
    window = np.ones((FOLD_WIDTH_PX, FOLD_WIDTH_PX), np.uint8)
    return float(cv2.morphologyEx(folded.astype(np.uint8), cv2.MORPH_OPEN, window).mean())


def tissue_stain(overview: Overview, resolution: Resolution, tissue: Tissue) -> Stain:
    """The stain of the median pixel of the slide's tissue; without tissue, one that no pixel exceeds."""
    rows, columns = (
        max(1, min(length, round(length * by * mpp / FOLD_UM)))
        for length, by, mpp in zip(
            overview.pixels.shape[:2], overview.downsample[::-1], (resolution.mpp_y, resolution.mpp_x), strict=True
        )
    )
    density, color = _stain_maps(resize(overview.pixels, columns, rows))
    mask = cv2.resize(tissue.mask.astype(np.uint8), (columns, rows), interpolation=cv2.INTER_NEAREST) > 0
    mask &= density > STAINED
    if not mask.any():
        return Stain(np.inf, np.inf)
    return Stain(float(np.median(density[mask])), float(np.median(color[mask])))


def _stain_maps(pixels: Pixels) -> tuple[Floats32, Floats32]:
    """Density and color of every pixel."""
    densities = OPTICAL_DENSITY[pixels]
    return densities.mean(axis=2), densities.max(axis=2) - densities.min(axis=2)


def artifact_notes(flags: Mapping[Artifact, Booleans], left_out: Collection[Artifact] = ()) -> tuple[str, ...]:
    """Notes on artifacts that many tiles have. left_out: those whose tiles are not used."""
    notes = []
    for name, tiles in flags.items():
        if len(tiles) and tiles.mean() >= MANY:
            what = "left out" if name in left_out else f"leave them out with --leave-out {name}"
            notes.append(f"{tiles.mean():.0%} of the tiles are {name}: {what}")
    return tuple(notes)
