"""Read masks from TIFF files, plain or pyramidal, of any size proportional to that of the slide."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import tifffile
from numpy.typing import NDArray
from shapely import MultiPolygon, Polygon

from asmil.errors import AsmilError
from asmil.files import refuse_special_file
from asmil.slides.image import LEVEL_TOLERANCE, Size, choose_level, true_downsamples
from asmil.slides.tiff_image import Page, is_stored_as_array, page_size
from asmil.slides.tiff_pages import TIFF_ERRORS, refuse_looping_pages
from asmil.slides.tissue.contours import halved
from asmil.tables.arrays import Booleans, Integers

Values = NDArray[np.integer]
MOST_VALUES_SHOWN = 6
MASK_SIDE = 2048
"""Length of the longer side, in pixels, at which a mask is read."""


def read_mask(
    path: Path | str,
    slide_size_px: Size | None,
    mask_shape: tuple[int, int],
    downsample: float,
    value: int | None = None,
) -> Booleans:
    """The tumor of a mask file, on a mask of `mask_shape` (rows x columns) whose pixels are `downsample` wide.

    slide_size_px: width and height of the slide at level 0, which determine the downsample of the file; None: the mask
        is assumed to have the size of the slide
    value: the value of tumor; by default the only nonzero value of the file
    """
    values = read_values(Path(path), slide_size_px, mask_shape, (downsample, downsample))
    return _chosen(Path(path), values, value)


def read_values(
    path: Path, slide_size_px: Size | None, mask_shape: tuple[int, int], downsample: tuple[float, float]
) -> Values:
    """The values of a mask file on a mask of `mask_shape`; arguments as for `read_mask`, but for the two downsamples.

    Each pixel gets the value of the file at its center, read from the coarsest level that is fine enough; tiles are
    decoded one by one, so that memory does not grow with the file.
    """
    refuse_special_file(path)
    try:
        refuse_looping_pages(path)
        with tifffile.TiffFile(path) as tiff:
            pages: list[Page] = [level.keyframe for level in tiff.series[0].levels]
            _refuse_strange(path, pages[0], len(tiff.series[0].pages))
            scales = [mask_scale(path, page_size(page), slide_size_px or page_size(pages[0])) for page in pages]
            level = choose_level(scales, min(downsample))
            return _sample(path, pages[level], scales[level], mask_shape, downsample)
    except AsmilError:
        raise
    except TIFF_ERRORS as error:
        raise AsmilError(f"{path}: the mask cannot be read ({error}); copy the file again") from None


def _refuse_strange(path: Path, page: Page, planes: int) -> None:
    if page.samplesperpixel != 1 or planes != 1 or page.dtype is None or page.dtype.kind not in "bui":
        what = f"{max(page.samplesperpixel, planes)} channels of {page.dtype}"
        raise AsmilError(f"{path}: the mask has {what} instead of one integer channel; save it as a gray TIFF")


def mask_scale(path: Path, size: Size, slide_size_px: Size) -> tuple[float, float]:
    """Level-0 pixels of a mask pixel, (x, y); a mask with other proportions than the slide is an error."""
    x, y = true_downsamples([slide_size_px, size])[1]
    if abs(x - y) > LEVEL_TOLERANCE * max(x, y) + max(x, y) / min(size):
        raise AsmilError(
            f"{path}: a mask of {size[0]} x {size[1]} pixels does not match a slide of {slide_size_px[0]} x "
            f"{slide_size_px[1]}; give the mask of this slide, with the same proportions"
        )
    return x, y


def _sample(
    path: Path, page: Page, scale: tuple[float, float], mask_shape: tuple[int, int], downsample: tuple[float, float]
) -> Values:
    """The values of the page at the centers of the mask's pixels; 0 beyond the page."""
    width, height = page_size(page)
    rows = sampled_positions(mask_shape[0], downsample[1] / scale[1])
    columns = sampled_positions(mask_shape[1], downsample[0] / scale[0])
    values: Values = np.zeros(mask_shape, dtype=page.dtype)
    if is_stored_as_array(page):
        stored = np.memmap(
            path, page.dtype.newbyteorder(page.parent.byteorder), "r", page.dataoffsets[0], (height, width)
        )
        inside = np.ix_(rows[rows < height], columns[columns < width])
        values[: len(inside[0]), : inside[1].size] = stored[inside]
        return values
    for segment, (_, _, top, left, _), (_, tall, wide, _) in page.segments(maxworkers=1):
        if segment is not None:
            first, last = np.searchsorted(rows, (top, min(top + tall, height)))
            begin, end = np.searchsorted(columns, (left, min(left + wide, width)))
            values[first:last, begin:end] = segment[0, ..., 0][
                np.ix_(rows[first:last] - top, columns[begin:end] - left)
            ]
    return values


def sampled_positions(length: int, ratio: float) -> Integers:
    """The pixels at the centers of `length` pixels that are `ratio` times as wide."""
    return np.floor((np.arange(length) + 0.5) * ratio).astype(np.int64)


def _chosen(path: Path, values: Values, value: int | None) -> Booleans:
    if value is not None:
        return np.asarray(values == value)
    present = np.unique(values)
    if np.count_nonzero(present) > 1:
        shown = ", ".join(map(str, present[:MOST_VALUES_SHOWN].tolist())) + ", ..." * (len(present) > MOST_VALUES_SHOWN)
        raise AsmilError(
            f"{path}: the mask has the values {shown}, and it is unknown which of them is tumor; choose it with "
            "--mask-value (masks of the CAMELYON data release: 2)"
        )
    return np.asarray(values != 0)


def mask_outlines(path: Path | str, slide_size_px: Size, value: int | None = None) -> MultiPolygon:
    """The outlines of a mask file in level-0 pixels, see `read_mask` for `value`."""
    downsample = max(1.0, max(slide_size_px) / MASK_SIDE)
    width, height = (max(1, round(side / downsample)) for side in slide_size_px)
    return trace_outlines(read_mask(path, slide_size_px, (height, width), downsample, value), downsample)


def trace_outlines(mask: Booleans, downsample: float) -> MultiPolygon:
    """The outlines of the regions of a mask and of their holes, each as a separate polygon, in level-0 pixels."""
    rings, _ = cv2.findContours(halved(mask), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    return MultiPolygon([Polygon((ring[:, 0] + 0.5) * (downsample / 2)) for ring in rings])
