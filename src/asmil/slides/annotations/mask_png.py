"""Read masks from PNG files, of any size proportional to that of the slide."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from asmil.files import refuse_special_file
from asmil.slides.annotations.mask_tiff import mask_scale, sampled_positions
from asmil.slides.image import Size
from asmil.slides.picture_image import decode_picture
from asmil.tables.arrays import Booleans

COLORS = 3


def read_png_mask(
    path: Path, slide_size_px: Size, mask_shape: tuple[int, int], downsample: tuple[float, float]
) -> Booleans:
    """Whether the pixels of a PNG file are not black; arguments as for `read_values` of TIFF files.

    Paint programs save masks in color, with a channel for transparency, which is ignored.
    """
    refuse_special_file(path)
    picture = decode_picture(path, cv2.IMREAD_UNCHANGED)
    height, width = picture.shape[:2]
    scale = mask_scale(path, (width, height), slide_size_px)
    rows = sampled_positions(mask_shape[0], downsample[1] / scale[1])
    columns = sampled_positions(mask_shape[1], downsample[0] / scale[0])
    mask = np.zeros(mask_shape, np.bool_)
    inside = np.ix_(rows[rows < height], columns[columns < width])
    values = picture[inside]
    marked = values[..., :COLORS].any(axis=2) if values.ndim == COLORS else values != 0
    mask[: marked.shape[0], : marked.shape[1]] = marked
    return mask
