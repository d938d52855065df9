"""Tissue detection without tuning: one set of settings for every slide, scanner and magnification.

1. Read the slide at `mpp` microns per pixel, so that 20x and 40x scans give the same tissue.
2. Compute the distance from gray of every pixel after white-balancing the glass (`signal`).
3. Apply Otsu's threshold to its logarithm, within bounds (`stain_threshold`).
4. Pen marks (`pen_marks`), dark frames and cover slip lines are removed from the mask.
5. Gaps up to CLOSE_UM are closed and threads up to OPEN_UM removed; small holes are filled, small pieces dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels, SlideImage
from asmil.slides.overview import read_overview
from asmil.slides.settings import TissueConfig
from asmil.slides.tissue.contours import halved, trace_regions
from asmil.slides.tissue.regions import Mask, Polygon, Region, Tissue
from asmil.slides.tissue.signal import (
    Signal,
    brightest,
    chroma,
    glass_color,
    is_dark_field,
    looks_like_glass,
    stain_signal,
    to_white,
)
from asmil.tables.arrays import Booleans, Floats, Floats32, Integers

SMOOTH_UM = 24.0
CLOSE_UM = 48.0
OPEN_UM = 24.0
UNSCALED_SIDE_PX = 2048
NEARLY_ALL = 0.98
MUCH_PEN = 0.3
Density = Floats32
STROKE_UM = 48.0
MIN_MARK_UM2 = 20_000.0


@dataclass(frozen=True)
class TissueMask:
    """The tissue found on an overview.

    largest_um2: area of the largest piece, including pieces too small to keep
    pen_share: pen marks as a share of all stained pixels, tissue or ink
    """

    mask: Mask
    threshold: float
    largest_um2: float
    dark_field: bool = False
    pen_share: float = 0.0


@dataclass(frozen=True)
class Scale:
    """Microns per pixel of the overview that is searched.

    If a slide has no resolution, its pixels are assumed to have the size given in the settings.
    """

    mpp: float

    def px(self, um: float) -> int:
        """A length as an integer number of pixels, at least 1."""
        return max(1, round(um / self.mpp))

    def area_px(self, um2: float) -> float:
        return um2 / self.mpp**2

    def disk(self, diameter_um: float) -> NDArray[np.uint8]:
        """A circular structuring element of odd side."""
        side = self.px(diameter_um) // 2 * 2 + 1
        return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side)), dtype=np.uint8)


def auto_tissue(image: SlideImage, config: TissueConfig | None = None) -> Tissue:
    """The tissue of a slide, found by Otsu's threshold on its stain.

    A slide without resolution is searched at a longer side of UNSCALED_SIDE_PX pixels, which are assumed to be
    `config.mpp` microns wide.
    """
    config = config or TissueConfig()
    resolution = image.resolution
    if resolution is None:
        overview, scale = read_overview(image, max_side=UNSCALED_SIDE_PX), Scale(config.mpp)
    else:
        overview = read_overview(image, mpp=config.mpp)
        x, y = overview.downsample
        scale = Scale(math.sqrt(x * resolution.mpp_x * y * resolution.mpp_y))
    tissue = tissue_mask(overview.pixels, scale, config)
    return Tissue(
        regions=mask_regions(tissue.mask, overview.downsample),
        mask=tissue.mask,
        downsample=overview.downsample,
        threshold=tissue.threshold,
        notes=_notes(tissue, resolution is not None),
    )


def tissue_mask(pixels: Pixels, scale: Scale, config: TissueConfig) -> TissueMask:
    """The tissue of an overview whose pixels are `scale.mpp` microns wide."""
    side = scale.px(SMOOTH_UM) // 2 * 2 + 1
    smooth = np.asarray(cv2.GaussianBlur(pixels, (side, side), 0), dtype=np.uint8)
    if is_dark_field(smooth):
        light = brightest(smooth)
        threshold = light_threshold(light)
        mask, largest_um2 = _clean(light > threshold, np.zeros(light.shape, dtype=bool), scale, config)
        return TissueMask(mask, threshold, largest_um2, dark_field=True)
    white = to_white(smooth, glass_color(smooth))
    signal = stain_signal(white)
    threshold = stain_threshold(signal, looks_like_glass(white))
    stained = signal > threshold
    left_out = np.zeros_like(stained)
    if config.edges:
        left_out |= dark_frame(white, scale)
        white[left_out] = 255  # a black frame is not ink
        left_out |= straight_lines(stained & ~left_out, scale)
    pen_share = 0.0
    if config.pen:
        marks = pen_marks(white, scale)
        pen_share = float(marks.sum() / max(1, (marks | (stained & ~left_out)).sum()))
        left_out |= marks
    mask, largest_um2 = _clean(stained, left_out, scale, config)
    return TissueMask(mask, threshold, largest_um2, pen_share=pen_share)


def _clean(stained: Mask, left_out: Mask, scale: Scale, config: TissueConfig) -> tuple[Mask, float]:
    """The pieces that are large enough, without small holes; and the area of the largest piece, um2.

    left_out: pixels that are never tissue, even in small holes
    """
    closed = cv2.morphologyEx((stained & ~left_out).astype(np.uint8), cv2.MORPH_CLOSE, scale.disk(CLOSE_UM))
    opened = cv2.morphologyEx(closed, cv2.MORPH_OPEN, scale.disk(OPEN_UM)) > 0
    filled = fill_small(opened, scale.area_px(config.min_hole_um2)) & ~left_out
    return drop_small(filled, scale.area_px(config.min_area_um2)), largest_piece(filled) * scale.mpp**2


def _notes(tissue: TissueMask, scaled: bool) -> tuple[str, ...]:
    share = float(tissue.mask.mean()) if tissue.mask.size else 0.0
    notes = []
    if not scaled:
        notes.append("no resolution: areas are relative")
    if tissue.dark_field:
        notes.append("dark background: fluorescence, not H&E")
    if not tissue.mask.any():
        dropped = f"; the largest stained piece has {tissue.largest_um2:,.0f} um2" if tissue.largest_um2 else ""
        notes.append(f"no tissue found{dropped}")
    elif share > NEARLY_ALL:
        notes.append(f"tissue nearly everywhere ({share:.1%})")
    if tissue.pen_share > 0:
        advice = "; for a blue or green stain set tissue.pen=false" if tissue.pen_share > MUCH_PEN else ""
        notes.append(f"pen marks left out ({tissue.pen_share:.1%} of the stain{advice})")
    return tuple(notes)


LOWEST = 5.0
"""JPEG noise on averaged glass is below this signal."""
HIGHEST_NOISE = 10.0
HIGHEST = 18.0
"""Clearly visible stain is above this signal."""
NOISE_DEVIATIONS = 5.0
DEVIATIONS_PER_MAD = 1.4826


def otsu(counts: Integers, values: Floats) -> int:
    """The index of the last bin of the lower class: the split with the largest variance between classes.

    counts, values: of each bin. At ties the first split is used; with a single nonempty bin, that bin.
    """
    total = counts.sum()
    below = np.cumsum(counts)
    above = total - below
    weighted = np.cumsum(counts * values)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = weighted / below - (weighted[-1] - weighted) / above
        between = np.where((below > 0) & (above > 0), below * 1.0 * above * gap**2, 0.0)
    if between.max() <= 0:
        return int(np.flatnonzero(counts)[-1]) if total else 0
    return int(np.argmax(between))


def stain_threshold(signal: Signal, glass: Booleans) -> float:
    """The signal above which a pixel is tissue.

    Otsu's method always splits a histogram in two, even for an empty slide (where it splits the noise) and for a slide
    full of tissue (where it splits the tissue). The result is therefore limited to the range between noise and pale
    stain. It is computed on the logarithm of the signal: glass is near 0 and strong stain above 100, and pale stain
    should be grouped with strong stain.

    glass: pixels that are certainly not stained; their spread is the noise of this slide
    """
    return float(np.clip(_otsu_of_logarithm(signal), _noise_bound(signal[glass]), HIGHEST))


def light_threshold(signal: Signal) -> float:
    """The brightness above which a pixel of a dark field is tissue."""
    return float(max(_otsu_of_logarithm(signal), LOWEST))


def _otsu_of_logarithm(signal: Signal) -> int:
    return otsu(np.bincount(signal.ravel(), minlength=256), np.log1p(np.arange(256.0)))


def _noise_bound(noise: Signal) -> float:
    if not noise.size:
        return LOWEST
    center = float(np.median(noise))
    deviation = DEVIATIONS_PER_MAD * float(np.median(np.abs(noise - center)))
    return float(np.clip(center + NOISE_DEVIATIONS * deviation, LOWEST, HIGHEST_NOISE))


FRAME_BRIGHTNESS = 110
FRAME_CHROMA = 12
FRAME_CHROMA_SHARE = 0.15
"""A frame has at most this chroma plus this share of its brightness; dense nuclei have three times as much."""
LINE_WIDTH_UM = 160.0
"""Needle cores are wider."""
LINE_LENGTH = 0.3
"""As a share of the slide's longer side."""
LINE_SLENDERNESS = 12.0
"""Length divided by width."""
RIM_UM = 40.0


def dark_frame(pixels: Pixels, scale: Scale) -> Mask:
    """Dark, colorless areas that reach the border of the scan, with a rim: frames, and areas that were not scanned."""
    brightness = brightest(pixels)
    dark = (brightness < FRAME_BRIGHTNESS) & (chroma(pixels) <= FRAME_CHROMA + FRAME_CHROMA_SHARE * brightness)
    # thin dark seams between dense tissue and glass are not a frame
    wide = cv2.morphologyEx(dark.astype(np.uint8), cv2.MORPH_OPEN, scale.disk(RIM_UM))
    if not wide.any():
        return np.zeros_like(dark)
    _, labels = cv2.connectedComponents(wide, connectivity=8)
    border = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    frame = np.isin(labels, border[border > 0])
    return np.asarray(cv2.dilate(frame.astype(np.uint8), scale.disk(2 * RIM_UM)) > 0, dtype=bool)


def straight_lines(mask: Mask, scale: Scale) -> Mask:
    """Parts of a mask that are straight, thinner than LINE_WIDTH_UM and long relative to the slide."""
    binary = mask.astype(np.uint8)
    side = scale.px(LINE_WIDTH_UM)
    # add an empty border, so that parts at the edge of the scan do not count as thick
    padded = cv2.copyMakeBorder(binary, side, side, side, side, cv2.BORDER_CONSTANT, value=0)
    thick = cv2.morphologyEx(padded, cv2.MORPH_OPEN, np.ones((side, side), np.uint8))[side:-side, side:-side]
    contours, _ = cv2.findContours((mask & (thick == 0)).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    lines = np.zeros_like(binary)
    longest = LINE_LENGTH * max(mask.shape)
    for contour in contours:
        width, length = (extent + 1 for extent in sorted(cv2.minAreaRect(contour)[1]))  # through pixel centers
        if length >= max(longest, LINE_SLENDERNESS * width) and width <= side:
            cv2.drawContours(lines, [contour], -1, 1, cv2.FILLED)
    return np.asarray(lines > 0, dtype=bool)


STRAIGHTENING_HALVES = 1.0


def drop_small(mask: Mask, min_px: float) -> Mask:
    """The mask without pieces of fewer than `min_px` pixels."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    keep = stats[:, cv2.CC_STAT_AREA] >= min_px
    keep[0] = False
    return np.asarray(keep[labels], dtype=bool)


def largest_piece(mask: Mask) -> int:
    """The number of pixels of the largest piece."""
    stats = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)[2]
    return int(stats[1:, cv2.CC_STAT_AREA].max(initial=0))


def fill_small(mask: Mask, min_px: float) -> Mask:
    """The mask with holes of fewer than `min_px` pixels filled; a bay open to the border is not a hole."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats((~mask).astype(np.uint8), connectivity=4)
    fill = stats[:, cv2.CC_STAT_AREA] < min_px
    fill[np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))] = False
    fill[0] = True
    return np.asarray(fill[labels], dtype=bool)


def mask_regions(mask: Mask, downsample: tuple[float, float]) -> tuple[Region, ...]:
    """The pieces of a mask with their holes, in level-0 pixels; an island in a hole is a separate piece.

    Outlines run a quarter of a pixel inside the outermost pixels, simplified by at most half a pixel: a mask that is
    drawn from them again, by the centers of its pixels, is nearly the same.
    """
    scale = np.asarray(downsample) / 2

    def level0(polygon: Polygon) -> Polygon:
        corners = cv2.approxPolyDP(polygon, STRAIGHTENING_HALVES, closed=True).reshape(-1, 2)
        return np.asarray(np.rint((corners + 0.5) * scale), dtype=np.int32)

    return tuple(
        Region(level0(region.outline), tuple(map(level0, region.holes))) for region in trace_regions(halved(mask))
    )


def pen_marks(pixels: Pixels, scale: Scale) -> Mask:
    """The pixels of pen marks, with their rims; `pixels` have white glass.

    Ink differs from tissue by the light it absorbs. In optical densities OD = -log10(I / white), channel by channel:

    - blue and green ink absorbs more red than green light; hematoxylin and eosin absorb more green than red;
    - red ink absorbs as much blue light as green and hardly any red; eosin absorbs far less blue, and blood less
      of both when averaged over several cells;
    - black ink absorbs all three equally, and most of the light.

    A stroke is wide: anything narrower than a disk of STROKE_UM is a pigment, an inked margin or noise. A stroke fades
    at its rim: weaker marks count if they are connected to a certain one.
    """
    table = -np.log10((np.arange(256, dtype=np.float32) + 1) / 256)
    channels = cv2.split(cv2.medianBlur(pixels, 3))
    red, green, blue = (np.asarray(cv2.LUT(channel, table), dtype=np.float32) for channel in channels)
    marks = np.zeros(pixels.shape[:2], dtype=bool)
    for sure, weak in (_cold(red, green, blue), _red(red, green, blue), _black(red, green, blue)):
        marks |= _strokes(sure, weak, scale)
    return marks


def _cold(red: Density, green: Density, blue: Density) -> tuple[Mask, Mask]:
    excess = red - green
    return (excess > 0.05) & (red > 0.25), (excess > 0.01) & (red > blue + 0.05)


def _red(red: Density, green: Density, blue: Density) -> tuple[Mask, Mask]:
    sure = (green > 0.7) & (blue > 0.85 * green) & (red < 0.35 * green)
    weak = (green > 0.2) & (blue > 0.72 * green) & (red < 0.3 * green)
    return sure, weak


def _black(red: Density, green: Density, blue: Density) -> tuple[Mask, Mask]:
    lightest = np.minimum(np.minimum(red, green), blue)
    spread = np.maximum(np.maximum(red, green), blue) - lightest
    sure = ((lightest > 0.5) & (spread < 0.55 * lightest)) | (lightest > 0.9)
    return sure, (lightest > 0.2) & (spread < 0.6 * lightest)


def _strokes(sure: Mask, weak: Mask, scale: Scale) -> Mask:
    if not sure.any():
        return sure
    wide = cv2.morphologyEx(sure.astype(np.uint8), cv2.MORPH_OPEN, scale.disk(STROKE_UM))
    seeds = drop_small(wide > 0, scale.area_px(MIN_MARK_UM2))
    if not seeds.any():
        return seeds
    _, parts = cv2.connectedComponents((weak | seeds).astype(np.uint8), connectivity=4)
    touched = np.unique(parts[seeds])
    marks = np.isin(parts, touched).astype(np.uint8)
    return np.asarray(cv2.dilate(marks, scale.disk(2 * RIM_UM)) > 0, dtype=bool)
