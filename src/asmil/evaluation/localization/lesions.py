"""The lesions of a slide as CAMELYON16 counts them: targets, and isolated tumor cells that do not count.

The tumor mask is dilated by 37.5 um and its holes are filled; each connected region is then one lesion. (The "75 um"
of the challenge is a diameter.) A lesion with a major axis below 275 um (200 um plus the margin on both sides) is a
group of isolated tumor cells (ITC), neither a target nor a false positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from asmil.errors import AsmilError
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks.checked_arrays import mask_of

Labels = npt.NDArray[np.int32]

MASK_DOWNSAMPLE = 32
CAMELYON_UM_PER_PIXEL = 0.243 * MASK_DOWNSAMPLE
MARGIN_UM = 75 / 2
ITC_MAJOR_AXIS_UM = 275.0
EIGHT_CONNECTED = np.ones((3, 3), dtype=bool)


@dataclass(frozen=True)
class EvaluationMask:
    """The lesions of a slide.

    labels: H x W, 0 outside, 1 .. L in the lesions, numbered in the row-by-row order of their first pixels
    areas_px: L pixel counts
    major_axes_px: L lengths of the major axis of the ellipse with the same second moments
    itc: the labels of isolated tumor cells
    um_per_pixel: side of a mask pixel
    """

    labels: Labels
    areas_px: npt.NDArray[np.int64]
    major_axes_px: Floats
    itc: frozenset[int]
    um_per_pixel: float

    @property
    def n_lesions(self) -> int:
        """Number of lesions that count as targets: all but isolated tumor cells."""
        return len(self.areas_px) - len(self.itc)


def evaluation_mask(
    tumor: npt.ArrayLike,
    um_per_pixel: float = CAMELYON_UM_PER_PIXEL,
    margin_um: float = MARGIN_UM,
    itc_um: float = ITC_MAJOR_AXIS_UM,
) -> EvaluationMask:
    """Find the lesions in a tumor mask, H x W.

    A pixel belongs to a lesion if its distance to the nearest tumor pixel is strictly below margin_um / um_per_pixel.
    Holes are filled (background is 4-connected), lesions are 8-connected, and those with a major axis below
    itc_um / um_per_pixel are isolated tumor cells.
    """
    mask = mask_of("tumor mask", tumor)
    if not um_per_pixel > 0:
        raise AsmilError(f"the side of a mask pixel must be above 0 um, not {um_per_pixel}; give um_per_pixel")
    if not margin_um > 0:
        raise AsmilError(f"the margin of lesions must be above 0 um, not {margin_um}; give margin_um")
    labels, _ = label_regions(_widen(mask, margin_um / um_per_pixel))
    areas, major_axes = _areas_and_major_axes(labels)
    itc = np.flatnonzero(major_axes < itc_um / um_per_pixel) + 1
    return EvaluationMask(labels, areas, major_axes, frozenset(itc.tolist()), um_per_pixel)


def label_regions(mask: Booleans) -> tuple[Labels, int]:
    """H x W labels of the 8-connected regions of a mask, and how many there are."""
    labels = np.zeros(mask.shape, dtype=np.int32)
    count = ndimage.label(mask, structure=EIGHT_CONNECTED, output=labels)
    return labels, int(count)


def _widen(tumor: Booleans, margin_px: float) -> Booleans:
    widened = np.zeros_like(tumor)
    rows, columns = np.flatnonzero(tumor.any(axis=1)), np.flatnonzero(tumor.any(axis=0))
    if rows.size == 0:
        return widened
    # Pixels further away cannot change, and computing distances on a whole slide takes seconds.
    reach = int(np.ceil(margin_px))
    window = (
        slice(max(rows[0] - reach, 0), rows[-1] + reach + 1),
        slice(max(columns[0] - reach, 0), columns[-1] + reach + 1),
    )
    widened[window] = _fill_holes(_nearer_than(margin_px, tumor[window]))
    return widened


def _nearer_than(margin_px: float, tumor: Booleans) -> Booleans:
    """Pixels whose distance to the nearest tumor pixel is below the margin: a disk around each, row by row."""
    height = len(tumor)
    near = np.zeros_like(tumor)
    for offset in range(min(math.ceil(margin_px), height)):
        half = math.ceil(math.sqrt(margin_px**2 - offset**2)) - 1
        wide = ndimage.maximum_filter1d(tumor, 2 * half + 1, axis=1, mode="constant")
        near[offset:] |= wide[: height - offset]
        near[: height - offset] |= wide[offset:]
    return near


def _fill_holes(mask: Booleans) -> Booleans:
    """The mask with its holes filled: pixels that the background cannot reach by steps along rows and columns."""
    background, _ = ndimage.label(np.pad(~mask, 1, constant_values=True))
    return np.asarray(background[1:-1, 1:-1] != background[0, 0])


def _areas_and_major_axes(labels: Labels) -> tuple[npt.NDArray[np.int64], Floats]:
    """Areas, and 4 sqrt of the largest eigenvalue of the covariance of the pixel centers (divisor n)."""
    rows, columns = np.nonzero(labels)
    label = labels[rows, columns] - 1
    areas = np.bincount(label)
    y = rows - (np.bincount(label, rows) / areas)[label]
    x = columns - (np.bincount(label, columns) / areas)[label]
    var_y, var_x, cov = (np.bincount(label, product) / areas for product in (y * y, x * x, x * y))
    largest = (var_x + var_y) / 2 + np.hypot((var_x - var_y) / 2, cov)
    return areas, np.asarray(4 * np.sqrt(largest))
