"""The slide with its map as a pyramidal TIFF, for viewers that open slides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

from asmil.engine.jobs import made_progress
from asmil.errors import AsmilError
from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.color_scale import ColorScale
from asmil.explain.figure import GLASS, OPACITY
from asmil.explain.tile_map import SlideFrame
from asmil.explain.tile_raster import NO_TILE, tile_raster
from asmil.slides.image import Pixels, SlideImage, choose_level
from asmil.slides.pixel_regions import resize
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.tables.arrays import Floats

STRIP_ROWS = 1024
"""Rows that are computed at once; a multiple of the coarsest level's downsample."""


def write_overlay(
    path: Path | str,
    frame: SlideFrame,
    image: SlideImage | None,
    values: Floats,
    scale: ColorScale,
    mpp: float | None = None,
    opacity: float = OPACITY,
    caveats: Caveats = NO_CAVEATS,
) -> None:
    """Write the whole slide with the colors of its tiles over it, strip by strip, to limit the memory.

    mpp: microns per pixel of the finest level; default: the full resolution of the slide
    caveats: written into the file's description, which slide viewers show as a property
    """
    if frame.mpp is None and mpp is not None:
        raise AsmilError(f"{frame.slide}: its resolution is unknown, so --tiff-mpp cannot be used; leave it out")
    downsample = 1.0 if mpp is None or frame.mpp is None else max(1.0, mpp / frame.mpp)
    size = (max(1, round(frame.size_px[0] / downsample)), max(1, round(frame.size_px[1] / downsample)))
    strips = _strips(frame, image, values, scale, size, opacity)
    write_pyramid(path, strips, (frame.mpp or 1.0) * downsample, size, description=" ".join(caveats.texts))


def _strips(
    frame: SlideFrame,
    image: SlideImage | None,
    values: Floats,
    scale: ColorScale,
    size: tuple[int, int],
    opacity: float,
) -> Iterator[Pixels]:
    raster = tile_raster(frame.coords, frame.tile_px)
    colors = scale.colors(values).astype(np.float32) * opacity
    step_x, step_y = frame.size_px[0] / size[0], frame.size_px[1] / size[1]
    x = (np.arange(size[0]) + 0.5) * step_x
    for first in range(0, size[1], STRIP_ROWS):
        rows = min(STRIP_ROWS, size[1] - first)
        strip = _slide_strip(image, first, rows, size, (step_x, step_y))
        tiles = raster.at(x, (first + np.arange(rows) + 0.5) * step_y)
        shown = tiles != NO_TILE
        shown[shown] = ~np.isnan(values[tiles[shown]])
        if image is not None:
            gray = cv2.cvtColor(strip, cv2.COLOR_RGB2GRAY)[shown].astype(np.float32)
            strip[shown] = np.rint(gray[:, None] * (1 - opacity) + colors[tiles[shown]]).astype(np.uint8)
        else:
            strip[shown] = scale.colors(values)[tiles[shown]]
        made_progress()
        yield strip


def _slide_strip(
    image: SlideImage | None, first: int, rows: int, size: tuple[int, int], step: tuple[float, float]
) -> Pixels:
    """Rows of the slide at the written resolution."""
    if image is None:
        return np.full((rows, size[0], 3), GLASS, dtype=np.uint8)
    level = choose_level(image.downsamples, min(step))
    level_y = image.downsamples[level][1]
    width = image.level_sizes[level][0]
    top, bottom = round(first * step[1] / level_y), round((first + rows) * step[1] / level_y)
    region = image.read(0, round(top * level_y), level, width, max(1, bottom - top))
    return np.ascontiguousarray(resize(region, size[0], rows))
