"""Convert concentrations of hematoxylin and eosin to colors, by optical density.

    intensity = white * exp(-(h * H + e * E)),    h, e: directions in RGB optical density

The two factors are tables of 256 colors, so rendering takes two lookups and one product per pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.arrays import Bytes
from asmil.slides.image import Pixels
from asmil.slides.synthetic.plan import SlidePlan, Stream
from asmil.synthetic_plan import generator

HEMATOXYLIN = (0.60, 0.72, 0.36)
EOSIN = (0.16, 0.82, 0.54)
DENSITY_AT_255 = (2.3, 1.7)
PALE = 0.12
"""Share of the slides that are stained weakly."""


@dataclass(frozen=True)
class Stain:
    """256 x 1 x 3 tables: the light that each concentration transmits."""

    hematoxylin: Pixels
    eosin: Pixels

    def color(self, hematoxylin: Bytes, eosin: Bytes) -> Pixels:
        """Rows x columns of concentrations to RGB."""
        light = cv2.applyColorMap(hematoxylin, self.hematoxylin)
        cv2.multiply(light, cv2.applyColorMap(eosin, self.eosin), dst=light, scale=1 / 255)
        return np.asarray(light, dtype=np.uint8)


def draw_stain(seed: int, plan: SlidePlan) -> Stain:
    """The stain of a slide: that of its site with a small variation."""
    site = generator(seed, Stream.SITE, plan.site)
    own = generator(seed, Stream.STAIN, plan.index)
    directions = [
        _unit(np.array(vector) + site.normal(0, 0.045, 3) + own.normal(0, 0.015, 3)) for vector in (HEMATOXYLIN, EOSIN)
    ]
    strength = site.uniform(0.85, 1.2, 2) * own.uniform(0.85, 1.15, 2)
    if own.random() < PALE:
        strength *= own.uniform(0.4, 0.6)
    return Stain(*(_table(d, s * top) for d, s, top in zip(directions, strength, DENSITY_AT_255, strict=True)))


def _table(direction: NDArray[np.float64], density: float) -> Pixels:
    levels = np.linspace(0, density, 256)[:, None] * direction
    return np.asarray(np.rint(255 * np.exp(-levels)), dtype=np.uint8)[:, None]


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    vector = np.clip(vector, 0.02, None)
    return np.asarray(vector / np.linalg.norm(vector))
