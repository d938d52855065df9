"""Small images of nuclei, as concentrations of hematoxylin, which are combined by their maximum."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.synthetic.slides.noise import smooth_field
from asmil.tables.arrays import Bytes

SPRITES_OF_KIND = 240
"""Number of shapes of a kind; they are ordered by the angle of their long axis, 0 to 180 degrees."""
BANK_SEED = 20_240


class Nucleus(IntEnum):
    """Kinds of nuclei."""

    SPINDLE = 0
    EPITHELIAL = 1
    LYMPHOCYTE = 2
    TUMOR = 3


@dataclass(frozen=True)
class _Look:
    """Lengths in microns; darkness and its spread are concentrations of 255.

    roughness: of the outline; rim: how much darker the membrane is; clumps: contrast of the chromatin;
    nucleoli: expected number
    """

    length_um: tuple[float, float]
    aspect: tuple[float, float]
    darkness: tuple[float, float]
    roughness: float
    rim: float
    clumps: float
    nucleoli: float


LOOKS = {
    Nucleus.SPINDLE: _Look((9, 19), (0.2, 0.36), (120, 165), 0.06, 0.0, 12, 0),
    Nucleus.EPITHELIAL: _Look((7.5, 10.5), (0.55, 0.8), (105, 150), 0.04, 14, 14, 0.3),
    Nucleus.LYMPHOCYTE: _Look((5.5, 7.5), (0.85, 1.0), (150, 205), 0.04, 8, 22, 0),
    Nucleus.TUMOR: _Look((9, 19), (0.55, 0.95), (60, 140), 0.13, 34, 22, 1.4),
}


@lru_cache(maxsize=4)
def sprite_bank(mpp: float) -> tuple[Bytes, ...]:
    """All sprites at a resolution: `SPRITES_OF_KIND` of the first kind, then of the second, ..."""
    bank = []
    for kind, look in LOOKS.items():
        rng = np.random.default_rng((BANK_SEED, int(kind)))
        bank += [_draw(rng, look, np.pi * (n + 0.5) / SPRITES_OF_KIND, mpp) for n in range(SPRITES_OF_KIND)]
    return tuple(bank)


def choose_sprites(
    rng: np.random.Generator, kind: Nucleus, angles: NDArray[np.float64] | None, count: int
) -> NDArray[np.int64]:
    """Numbers of sprites of a kind, with long axes along the given angles (radians), or at random."""
    if angles is None:
        return np.asarray(kind * SPRITES_OF_KIND + rng.integers(0, SPRITES_OF_KIND, count))
    turned = np.mod(angles + rng.normal(0, 0.15, count), np.pi) / np.pi
    return np.asarray(kind * SPRITES_OF_KIND + np.minimum((turned * SPRITES_OF_KIND).astype(int), SPRITES_OF_KIND - 1))


def longest_um() -> float:
    """No sprite extends further than half of this from its center."""
    return max(look.length_um[1] * (1 + 3 * look.roughness) for look in LOOKS.values())


def _draw(rng: np.random.Generator, look: _Look, angle: float, mpp: float) -> Bytes:
    """One nucleus: an uneven ellipse with chromatin, a membrane and nucleoli."""
    half_length = rng.uniform(*look.length_um) / 2
    half_width = half_length * rng.uniform(*look.aspect)
    reach = int(np.ceil(half_length * (1 + 2.5 * look.roughness) / mpp)) + 1
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1] * mpp
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    theta = np.arctan2(across / half_width, along / half_length)
    radius = np.hypot(along / half_length, across / half_width)
    for wave in (2, 3, 5):
        radius = radius * (1 + look.roughness * rng.normal() / np.sqrt(wave) * np.cos(wave * theta + rng.uniform(0, 6)))
    inside = np.clip((1 - radius) * half_width / (1.2 * mpp) + 0.5, 0, 1)
    darkness = rng.uniform(*look.darkness)
    chromatin = smooth_field(rng, x.shape, 1.6 / mpp)
    values = darkness + look.clumps * chromatin + look.rim * np.exp(-(((radius - 0.9) / 0.14) ** 2))
    for _ in range(rng.poisson(look.nucleoli)):
        nucleolus = rng.uniform(-0.45, 0.45, 2) * (half_length, half_width)
        values += 70 * np.exp(
            -((along - nucleolus[0]) ** 2 + (across - nucleolus[1]) ** 2) / (2 * rng.uniform(0.5, 0.9) ** 2)
        )
    sprite = np.clip(inside * values, 0, 250).astype(np.uint8)
    return np.asarray(cv2.GaussianBlur(sprite, (3, 3), 0), dtype=np.uint8)
