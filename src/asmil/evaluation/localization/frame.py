"""How the tiles of a slide lie on its mask: sizes, and how large a mask pixel is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.cohort.source import FeatureInfo
from asmil.errors import AsmilError
from asmil.evaluation.localization.lesions import CAMELYON_UM_PER_PIXEL, MASK_DOWNSAMPLE


@dataclass(frozen=True)
class Frame:
    """Sizes of a slide and its tiles, in level-0 pixels.

    tile_px: side of a tile
    size_px: width and height of the slide; the extent of its tiles where the features do not state it
    mpp: microns per level-0 pixel; None where it is not known, and CAMELYON16's is assumed
    downsample: level-0 pixels along the side of a mask pixel
    """

    tile_px: float
    size_px: tuple[int, int]
    size_is_stated: bool
    mpp: float | None
    downsample: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the mask."""
        return math.ceil(self.size_px[1] / self.downsample), math.ceil(self.size_px[0] / self.downsample)

    @property
    def um_per_pixel(self) -> float:
        """Side of a mask pixel in microns."""
        return CAMELYON_UM_PER_PIXEL if self.mpp is None else self.downsample * self.mpp


def frame_of(slide: str, info: FeatureInfo, coords: npt.NDArray[np.int64], mpp: float | None) -> Frame:
    """The frame of a slide, from what its feature file states.

    mpp: what the manifest says, for files that do not
    A mask pixel is a power of two of level-0 pixels, as near as possible to CAMELYON16's 7.776 um and never larger
    than a tile; 32 where the resolution is not known.
    """
    side_um = info.tile_side_um
    mpp = info.mpp or mpp or (side_um / info.tile_px_level0 if side_um and info.tile_px_level0 else None)
    tile_px = info.tile_px_level0 or (side_um / mpp if side_um and mpp else None)
    if tile_px is None:
        raise AsmilError(
            f"{slide}: how large its tiles are at level 0 is not known ({info.source}); extract the features again"
        )
    stated = info.slide_width_px is not None and info.slide_height_px is not None
    width, height = np.ceil(coords.max(axis=0) + tile_px).astype(int).tolist()
    size_px = (info.slide_width_px or width, info.slide_height_px or height) if stated else (width, height)
    wanted = MASK_DOWNSAMPLE if mpp is None else 2 ** max(0, round(math.log2(CAMELYON_UM_PER_PIXEL / mpp)))
    return Frame(float(tile_px), size_px, stated, mpp, min(wanted, 2 ** int(math.log2(max(tile_px, 1)))))
