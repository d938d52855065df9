"""Otsu's threshold, kept between what noise reaches and what pale stain reaches.

Otsu always splits a histogram in two, also that of an empty slide (where it splits the noise) and that of a slide full
of tissue (where it splits the tissue). Its answer is therefore used only between two bounds. It is computed on the
logarithm of the signal: the glass is near 0 and strong stain above 100, and pale stain belongs to the latter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asmil.slides.tissue.signal import Signal

LOWEST = 5.0
"""JPEG noise on averaged glass stays below this signal."""
HIGHEST_NOISE = 10.0
HIGHEST = 18.0
"""Stain that is seen at once lies above this signal."""
NOISE_DEVIATIONS = 5.0
DEVIATIONS_PER_MAD = 1.4826


def otsu(counts: NDArray[np.int64], values: NDArray[np.float64]) -> int:
    """The index of the last bin of the lower class: the split with the largest variance between classes.

    counts, values: of each bin. Of equal splits the first counts. One filled bin only: that bin.
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


def stain_threshold(signal: Signal, glass: NDArray[np.bool_]) -> float:
    """The signal above which a pixel is tissue.

    glass: pixels that are surely not stained, whose spread is the noise of this slide
    """
    counts = np.bincount(signal.ravel(), minlength=256)
    split = float(otsu(counts, np.log1p(np.arange(256.0))))
    return float(np.clip(split, _noise_bound(signal[glass]), HIGHEST))


def light_threshold(signal: Signal) -> float:
    """The brightness above which a pixel of a dark field is tissue."""
    counts = np.bincount(signal.ravel(), minlength=256)
    return float(max(otsu(counts, np.log1p(np.arange(256.0))), LOWEST))


def _noise_bound(noise: Signal) -> float:
    if not noise.size:
        return LOWEST
    center = float(np.median(noise))
    deviation = DEVIATIONS_PER_MAD * float(np.median(np.abs(noise - center)))
    return float(np.clip(center + NOISE_DEVIATIONS * deviation, LOWEST, HIGHEST_NOISE))
