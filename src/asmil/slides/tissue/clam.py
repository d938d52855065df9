"""CLAM's tissue detection: threshold on the blurred saturation, closing, contour tracing, and filtering by area."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError
from asmil.slides.image import Pixels, SlideImage
from asmil.slides.overview import read_overview
from asmil.slides.settings import ClamConfig, ClamPreset
from asmil.slides.tissue.contours import fill_regions, keep_regions, tissue_areas, to_level0, trace_regions
from asmil.slides.tissue.regions import Region, Tissue

REFERENCE_PX = 512
"""Side of the square that is the unit of area, in level-0 pixels."""
Saturation = NDArray[np.uint8]
"""Height x width."""
STRIP_PX = 2**24
"""Number of level-0 pixels that are kept in color at a time."""


@dataclass(frozen=True)
class ClamParameters:
    """The parameters of CLAM's tissue detection, see `ClamConfig`."""

    sthresh: int
    mthresh: int
    close: int
    a_t: float
    a_h: float
    max_n_holes: int
    otsu: bool = False
    reference_px: int = REFERENCE_PX

    def reference_area(self, downsample: tuple[float, float]) -> int:
        """The unit of `a_t` and `a_h` in pixels of a level."""
        return int(self.reference_px**2 / (downsample[0] * downsample[1]))


PRESETS: dict[ClamPreset, ClamParameters] = {
    "default": ClamParameters(sthresh=8, mthresh=7, close=4, a_t=100, a_h=16, max_n_holes=8),
    "bwh_biopsy": ClamParameters(sthresh=15, mthresh=11, close=2, a_t=1, a_h=1, max_n_holes=2),
    "bwh_resection": ClamParameters(sthresh=15, mthresh=11, close=4, a_t=100, a_h=16, max_n_holes=8),
    "tcga": ClamParameters(sthresh=8, mthresh=7, close=4, a_t=16, a_h=4, max_n_holes=8),
}


def resolve_clam(config: ClamConfig) -> ClamParameters:
    """The preset's parameters, overridden by those given by the user."""
    names = ("sthresh", "mthresh", "close", "a_t", "a_h", "max_n_holes")
    given = {name: value for name in names if (value := getattr(config, name)) is not None}
    return replace(PRESETS[config.preset], otsu=config.otsu, **given)


SEARCH_DOWNSAMPLE = 64
MOST_PIXELS = 10**8
"""CLAM skips a slide if the level has more pixels."""
SUSPICIOUS_SHARE = 0.98
DEFAULT = ClamConfig()


@dataclass(frozen=True)
class Segmentation:
    """The stages of a search on one level; masks contain 0 and 1, regions are in pixels of the level."""

    blurred: Saturation
    threshold: float
    foreground: NDArray[np.uint8]
    closed: NDArray[np.uint8]
    regions: list[Region]


def clam_tissue(image: SlideImage, config: ClamConfig = DEFAULT) -> Tissue:
    """The tissue of a slide by CLAM's rules, which use level-0 pixels and ignore the resolution."""
    parameters = resolve_clam(config)
    seen, downsample, notes = read_for_search(image, config.level)
    return tissue_of(segment(seen, parameters), parameters, downsample, notes)


def read_for_search(
    image: SlideImage, level: int | None = None
) -> tuple[Saturation, tuple[float, float], tuple[str, ...]]:
    """The saturation to be searched, its downsample, and a note if CLAM would have skipped the slide."""
    if level is not None and level >= len(image.level_sizes):
        raise AsmilError(
            f"slide {image.name}: tissue.clam.level is {level}, but the levels are 0 to {len(image.level_sizes) - 1}; "
            "use one of these, or leave the setting out"
        )
    level = search_level(image) if level is None else level
    width, height = image.level_sizes[level]
    if width * height <= MOST_PIXELS:
        return read_saturation(image, level), image.level_downsamples[level], ()
    overview = read_overview(image, max_side=math.ceil(max(image.size) / SEARCH_DOWNSAMPLE), outside=0)
    note = (
        f"level {level} has {width} x {height} pixels, too many to search (CLAM fails here): "
        f"an overview downsampled by {overview.downsample[0]:.4g} was searched instead"
    )
    return saturation(overview.pixels), overview.downsample, (note,)


def search_level(image: SlideImage) -> int:
    """The level that OpenSlide calls the best for downsample 64: the last one that is not coarser."""
    best = 0
    for level, (x, y) in enumerate(image.level_downsamples):
        if (x + y) / 2 > SEARCH_DOWNSAMPLE:
            break
        best = level
    return best


def segment(seen: Saturation, parameters: ClamParameters) -> Segmentation:
    """Median, threshold, closing and outlines of a saturation."""
    blurred = cv2.medianBlur(seen, parameters.mthresh)
    kind = cv2.THRESH_BINARY + (cv2.THRESH_OTSU if parameters.otsu else 0)
    threshold, foreground = cv2.threshold(blurred, 0 if parameters.otsu else parameters.sthresh, 1, kind)
    closed = foreground
    if parameters.close > 0:
        # with CLAM's even windows OpenCV shifts the mask by a pixel: the window must not be centered
        window = np.ones((parameters.close, parameters.close), dtype=np.uint8)
        closed = cv2.morphologyEx(foreground, cv2.MORPH_CLOSE, window)
    blurred, foreground, closed = (np.asarray(stage, dtype=np.uint8) for stage in (blurred, foreground, closed))
    return Segmentation(blurred, float(threshold), foreground, closed, trace_regions(closed))


def tissue_of(
    segmentation: Segmentation, parameters: ClamParameters, downsample: tuple[float, float], notes: tuple[str, ...] = ()
) -> Tissue:
    """The regions that are large enough, in level-0 pixels, and notes for the user."""
    unit = parameters.reference_area(downsample)
    kept = keep_regions(segmentation.regions, parameters.a_t * unit, parameters.a_h * unit, parameters.max_n_holes)
    mask = fill_regions(kept, segmentation.closed.shape)
    tissue = Tissue(tuple(to_level0(region, downsample) for region in kept), mask, downsample, segmentation.threshold)
    return replace(tissue, notes=(*notes, *_remarks(segmentation, parameters, unit, kept, tissue.share)))


def _remarks(
    segmentation: Segmentation, parameters: ClamParameters, unit: int, kept: Sequence[Region], share: float
) -> list[str]:
    if not segmentation.regions:
        return [
            f"no pixel is more saturated than {segmentation.threshold:g} of 255: the slide is blank, "
            "or so pale that sthresh must be lower"
        ]
    if not kept:
        return [_all_too_small(tissue_areas(segmentation.regions), parameters, unit)]
    if share > SUSPICIOUS_SHARE:
        return [f"{share:.1%} of the slide is tissue: a fluorescence slide, or a cut-out without background?"]
    return []


def _all_too_small(areas: Sequence[float], parameters: ClamParameters, unit: int) -> str:
    largest = max(areas) / max(unit, 1)
    problem = (
        f"no piece of tissue exceeds a_t {parameters.a_t:g} (squares of {parameters.reference_px} level-0 pixels): "
        f"the largest of {len(areas)} has {largest:.3g}"
    )
    if largest <= 0:
        return f"{problem}: they are lines one pixel wide, which no a_t keeps"
    return f"{problem} and would be kept with a_t {_rounded_down(largest):g}"


def _rounded_down(value: float) -> float:
    """Two digits, and less than the value.

    >>> _rounded_down(23.45), _rounded_down(2.0)
    (23.0, 1.9)
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{(math.ceil(value / step - 1e-9) - 1) * step:.3g}")


def saturation(pixels: Pixels) -> Saturation:
    """255 (max - min) / max of the three channels, rounded as OpenCV does; 0 for black."""
    return np.asarray(cv2.extractChannel(cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV), 1), dtype=np.uint8)


def read_saturation(image: SlideImage, level: int) -> Saturation:
    """The saturation of a whole level; transparent pixels count as black.

    Level 0 is read in strips, since only at level 0 a strip starts exactly at a pixel.
    """
    width, height = image.level_sizes[level]
    rows = max(1, STRIP_PX // width) if level == 0 else height
    strips = [
        saturation(image.read(0, y, level, width, min(rows, height - y), outside=0)) for y in range(0, height, rows)
    ]
    return strips[0] if len(strips) == 1 else np.concatenate(strips)
