"""Tissue without tuning: one set of settings for every slide, scanner and magnification.

1. The slide at `mpp` microns a pixel, so that 20x and 40x scans give the same tissue.
2. The distance from gray of every pixel once the glass is white (`signal`).
3. Otsu on its logarithm, between bounds (`threshold`).
4. Pen marks (`pen`), dark frames and cover slip lines (`edges`) leave the mask.
5. Gaps up to CLOSE_UM are closed and threads up to OPEN_UM removed; small holes are filled, small pieces dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np

from asmil.slides.image import Pixels, SlideImage
from asmil.slides.overview import read_overview
from asmil.slides.settings import TissueConfig
from asmil.slides.tissue.edges import dark_frame, straight_lines
from asmil.slides.tissue.outlines import drop_small, fill_small, largest_piece, mask_regions
from asmil.slides.tissue.pen import pen_marks
from asmil.slides.tissue.regions import Mask, Tissue
from asmil.slides.tissue.scale import Scale
from asmil.slides.tissue.signal import brightest, glass_color, is_dark_field, looks_like_glass, stain_signal, to_white
from asmil.slides.tissue.threshold import light_threshold, stain_threshold

SMOOTH_UM = 24.0
CLOSE_UM = 48.0
OPEN_UM = 24.0
UNSCALED_SIDE_PX = 2048
NEARLY_ALL = 0.98
MUCH_PEN = 0.3


@dataclass(frozen=True)
class TissueMask:
    """What was found on an overview.

    largest_um2: of the pieces, those too small to keep included
    pen_share: pen marks as a share of all that is stained, tissue or ink
    """

    mask: Mask
    threshold: float
    largest_um2: float
    dark_field: bool = False
    pen_share: float = 0.0


def auto_tissue(image: SlideImage, config: TissueConfig | None = None) -> Tissue:
    """The tissue of a slide, found by Otsu on its stain.

    A slide without resolution is searched at a longer side of UNSCALED_SIDE_PX, and its pixels there are taken as if
    they were `config.mpp` microns wide.
    """
    config = config or TissueConfig()
    resolution = image.resolution
    if resolution is None:
        overview, scale = read_overview(image, max_side=UNSCALED_SIDE_PX), Scale(config.mpp)
    else:
        overview = read_overview(image, mpp=config.mpp)
        x, y = overview.downsample
        scale = Scale(math.sqrt(x * resolution.mpp_x * y * resolution.mpp_y))
    found = tissue_mask(overview.pixels, scale, config)
    return Tissue(
        regions=mask_regions(found.mask, overview.downsample),
        mask=found.mask,
        downsample=overview.downsample,
        threshold=found.threshold,
        notes=_notes(found, resolution is not None),
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
        white[left_out] = 255  # a black frame is no ink
        left_out |= straight_lines(stained & ~left_out, scale)
    pen_share = 0.0
    if config.pen:
        marks = pen_marks(white, scale)
        pen_share = float(marks.sum() / max(1, (marks | (stained & ~left_out)).sum()))
        left_out |= marks
    mask, largest_um2 = _clean(stained, left_out, scale, config)
    return TissueMask(mask, threshold, largest_um2, pen_share=pen_share)


def _clean(stained: Mask, left_out: Mask, scale: Scale, config: TissueConfig) -> tuple[Mask, float]:
    """The pieces that are large enough, without small holes; and the area of the largest of all pieces, um2.

    left_out: never tissue, however small the hole that it leaves
    """
    closed = cv2.morphologyEx((stained & ~left_out).astype(np.uint8), cv2.MORPH_CLOSE, scale.disk(CLOSE_UM))
    opened = cv2.morphologyEx(closed, cv2.MORPH_OPEN, scale.disk(OPEN_UM)) > 0
    filled = fill_small(opened, scale.area_px(config.min_hole_um2)) & ~left_out
    return drop_small(filled, scale.area_px(config.min_area_um2)), largest_piece(filled) * scale.mpp**2


def _notes(found: TissueMask, scaled: bool) -> tuple[str, ...]:
    share = float(found.mask.mean()) if found.mask.size else 0.0
    notes = []
    if not scaled:
        notes.append("no resolution: areas are relative")
    if found.dark_field:
        notes.append("dark background: fluorescence, not H&E")
    if not found.mask.any():
        dropped = f"; the largest stained piece has {found.largest_um2:,.0f} um2" if found.largest_um2 else ""
        notes.append(f"no tissue found{dropped}")
    elif share > NEARLY_ALL:
        notes.append(f"tissue nearly everywhere ({share:.1%})")
    if found.pen_share > 0:
        advice = "; for a blue or green stain set tissue.pen=false" if found.pen_share > MUCH_PEN else ""
        notes.append(f"pen marks left out ({found.pen_share:.1%} of what is stained{advice})")
    return tuple(notes)
