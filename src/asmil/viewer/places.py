"""The frame of a slide on the page: its size, its resolution and where its tiles are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.cohort.features import inspect_features
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.errors import AsmilError


@dataclass(frozen=True)
class TilePlaces:
    """The tiles of a feature file.

    coords: N x 2, upper left corners in level-0 pixels
    tile_px: side of a tile in level-0 pixels
    size: width and height of the slide; the extent of the tiles where the file does not state it
    mpp: microns per level-0 pixel, where known
    """

    coords: npt.NDArray[np.int64]
    tile_px: float
    size: tuple[int, int]
    mpp: float | None


def read_places(
    slide: str, source: FeatureSource, mpp: float | None = None, image_size: tuple[int, int] | None = None
) -> TilePlaces:
    """Where the tiles of a feature file lie; features of another slide size than the image are refused."""
    info = inspect_features(source)
    side_um = info.tile_side_um
    mpp = info.mpp or mpp or (side_um / info.tile_px_level0 if side_um and info.tile_px_level0 else None)
    coords = _coords(slide, source, info, mpp)
    tile_px = info.tile_px_level0 or (side_um / mpp if side_um and mpp else None)
    if tile_px is None:
        raise AsmilError(f"{slide}: the size of its tiles at level 0 is unknown ({source}); extract the features again")
    stated = (info.slide_width_px, info.slide_height_px)
    if image_size is not None and None not in stated and stated != image_size:
        raise AsmilError(
            f"{slide}: its features are of a slide of {stated[0]} x {stated[1]} pixels, the image has "
            f"{image_size[0]} x {image_size[1]}; extract the features of this image"
        )
    width, height = np.ceil(coords.max(axis=0) + tile_px).astype(int).tolist()
    if image_size is not None and (coords.min() < -tile_px or coords[:, 0].max() >= image_size[0] + tile_px):
        raise AsmilError(f"{slide}: its tiles lie outside of the image; the features are of another slide ({source})")
    size = image_size or (stated[0] or width, stated[1] or height)
    return TilePlaces(coords, float(tile_px), size, mpp)


def _coords(slide: str, source: FeatureSource, info: FeatureInfo, mpp: float | None) -> npt.NDArray[np.int64]:
    with open_features(source, mmap=True) as file:
        values = file.read_coords()
    if values is None or len(values) == 0:
        raise AsmilError(
            f"{slide}: its features have no coordinates ({source}), so no map can be drawn; extract them again"
        )
    if info.coords_unit == "um":
        if mpp is None:
            raise AsmilError(
                f"{slide}: the coordinates of its features are in microns and its resolution is unknown; give --mpp"
            )
        values = values / mpp
    if not np.isfinite(values).all():
        raise AsmilError(f"{slide}: coordinates of its features are not finite ({source}); extract them again")
    return np.rint(values).astype(np.int64)
