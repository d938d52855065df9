"""Microns and pixels of the search for tissue."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scale:
    """Microns per pixel of the overview that is searched.

    Where a slide has no resolution, its pixels are taken as if they were of the size that the settings ask for.
    """

    mpp: float

    def px(self, um: float) -> int:
        """A length in whole pixels, at least one."""
        return max(1, round(um / self.mpp))

    def area_px(self, um2: float) -> float:
        """An area in pixels."""
        return um2 / self.mpp**2

    def disk(self, diameter_um: float) -> NDArray[np.uint8]:
        """A round window for morphology, of odd side."""
        side = self.px(diameter_um) // 2 * 2 + 1
        return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side)), dtype=np.uint8)
