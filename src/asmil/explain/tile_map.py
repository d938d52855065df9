"""What is drawn: one value per tile with its meaning, and the positions of the tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.cohort.bag import COORDS_UM, Bag
from asmil.cohort.features import inspect_features
from asmil.cohort.open_features import common_step
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.errors import AsmilError
from asmil.slides.image import SlideImage
from asmil.tables.arrays import Floats, Integers

SAME_SIZE = 1
"""Pixels by which two records of a slide's size may differ: some tools round."""


@dataclass(frozen=True)
class SlideFrame:
    """A slide and its tiles, in level-0 pixels.

    coords: N x 2, upper left corners of the tiles (x, y)
    tile_px: side of a tile
    size_px: width and height of the slide; if they are unknown, the extent of its tiles
    mpp: microns per level-0 pixel, if known
    """

    slide: str
    coords: Integers
    tile_px: float
    size_px: tuple[int, int]
    mpp: float | None = None


@dataclass(frozen=True)
class TileMap:
    """One value per tile.

    values: N; nan for a tile without a value
    kind: what the values are: "attention", "leave one out", ...
    about: how to read the values, for the legend; empty: the kind is enough
    average: for weights, such as attention: the mean over all tiles of the bag; None: not weights
    signed: whether 0 is meaningful
    """

    values: Floats
    kind: str
    about: str = ""
    title: str = ""
    notes: tuple[str, ...] = ()
    average: float | None = None
    signed: bool = False

    @property
    def which(self) -> str:
        """Which of several maps of one kind this is: its title without the kind.

        >>> TileMap(np.zeros(1), "attention", title="abmil, attention").which
        'abmil'
        """
        return ", ".join(part for part in self.title.split(", ") if part != self.kind)


def slide_frame(
    slide: str,
    coords: npt.ArrayLike | None,
    info: FeatureInfo | None = None,
    image: SlideImage | None = None,
    mpp: float | None = None,
    tile_px: float | None = None,
) -> SlideFrame:
    """The frame of a slide, from its features and, if there is one, its image.

    info: the header of the feature file; None if there are only coordinates
    mpp: for files that do not contain it
    tile_px: the side of a tile; default: that of the header or, without one, the distance of neighboring tiles

    Features without coordinates, tiles of unknown size, and an image of another size are refused.
    """
    if coords is None:
        raise AsmilError(
            f"{slide}: its features have no coordinates, so its tiles cannot be drawn; extract the slide again, or "
            "give feature files with coordinates"
        )
    corners = np.rint(np.asarray(coords, dtype=np.float64)).astype(np.int64).reshape(-1, 2)
    tile_px = tile_px or (common_step(corners) if info is None else info.tile_side_level0(mpp))
    if tile_px is None:
        raise AsmilError(f"{slide}: the side of its tiles at level 0 is unknown; give it with --tile-px")
    stated = None
    if info is not None and info.slide_width_px and info.slide_height_px:
        stated = (info.slide_width_px, info.slide_height_px)
    extent = np.ceil(corners.max(axis=0) + tile_px).astype(int)
    size = image.size if image is not None else stated or (int(extent[0]), int(extent[1]))
    if image is not None:
        _refuse_other_size(slide, image, stated, corners, tile_px)
    mpp = mpp or (info.mpp if info is not None else None)
    if mpp is None and image is not None and image.resolution is not None:
        mpp = image.resolution.mpp
    return SlideFrame(slide, corners, float(tile_px), (int(size[0]), int(size[1])), mpp)


def pixel_coords(bag: Bag, info: FeatureInfo) -> Integers | None:
    """N x 2, upper left corners of the tiles in level-0 pixels; None if they are unknown.

    info: the header of the feature file; its resolution is used if the coordinates are in microns
    """
    if bag.coords is None and COORDS_UM in bag.extras and info.mpp is not None:
        microns = bag.extras[COORDS_UM].numpy()
        return np.asarray(np.rint(microns / info.mpp), dtype=np.int64)
    return None if bag.coords is None else bag.coords.numpy().astype(np.int64)


def read_frame(
    slide: str, source: FeatureSource, mpp: float | None = None, image: SlideImage | None = None
) -> SlideFrame:
    """The frame of a slide from its feature file, without reading the features; raises like `slide_frame`.

    mpp: microns per level-0 pixel, for files that do not contain it
    """
    info = inspect_features(source)
    mpp = info.mpp or mpp or (image.resolution.mpp if image is not None and image.resolution is not None else None)
    with open_features(source, mmap=True) as file:
        coords = file.read_coords()
    if coords is not None and not np.isfinite(coords).all():
        raise AsmilError(f"{slide}: coordinates of its features are not finite ({source}); extract them again")
    if coords is not None and info.coords_unit == "um":
        if mpp is None:
            raise AsmilError(
                f"{slide}: the coordinates of its features are in microns and its resolution is unknown; give --mpp"
            )
        coords = coords / mpp
    return slide_frame(slide, coords, info, image, mpp)


def _refuse_other_size(
    slide: str,
    image: SlideImage,
    stated: tuple[int, int] | None,
    corners: Integers,
    tile_px: float,
) -> None:
    width, height = image.size
    if stated is not None and max(abs(stated[0] - width), abs(stated[1] - height)) > SAME_SIZE:
        raise AsmilError(
            f"{slide}: its features are of a slide of {stated[0]} x {stated[1]} pixels, but {image.path} has "
            f"{width} x {height}; give the image that the features were extracted from"
        )
    # a tile may extend beyond the image if its center is inside
    outside = ((corners + tile_px / 2 > (width + tile_px, height + tile_px)) | (corners < -tile_px)).any(axis=1)
    if outside.any():
        raise AsmilError(
            f"{slide}: {int(outside.sum())} of {len(corners)} tiles are outside of {image.path} ({width} x {height} "
            "pixels); give the image that the features were extracted from"
        )


def checked_values(slide: str, values: npt.ArrayLike, n_tiles: int) -> Floats:
    """N numbers, one per tile; nan marks a tile without a value."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise AsmilError(f"{slide}: the scores are {array.dtype}, not numbers")
    numbers = array.astype(np.float64)
    if 1 in numbers.shape:
        numbers = numbers.reshape(-1)
    if numbers.ndim != 1:
        raise AsmilError(f"{slide}: scores of shape {numbers.shape} are not one value per tile; give N values")
    if len(numbers) != n_tiles:
        raise AsmilError(
            f"{slide}: {len(numbers)} scores for {n_tiles} tiles; give one per tile, in the order of the feature file"
        )
    return numbers
