"""Textures that repeat without a seam: fibers, cytoplasm, grain. Made once a process and resolution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from asmil.slides.synthetic.noise import Bytes, Floats, to_bytes, torus_texture

SIDE_PX = 1024
BANK_SEED = 20_241


@dataclass(frozen=True)
class Textures:
    """Concentrations (0 to 255), each SIDE_PX square; `fibers` is repeated 3 x 3 for lookups beyond the border.

    fibers: eosin of stroma, streaks along x; cytoplasm: eosin of epithelium; haze: hematoxylin between nuclei;
    ragged: signed noise around 128 for uneven outlines; grain: RGB noise of the camera, to be subtracted
    """

    fibers: Bytes
    cytoplasm: Bytes
    haze: Bytes
    ragged: Bytes
    grain: Bytes


@lru_cache(maxsize=4)
def texture_bank(mpp: float) -> Textures:
    """The textures at a resolution."""
    rng = np.random.default_rng(BANK_SEED)

    def smooth(x_um: float, y_um: float) -> Floats:
        return torus_texture(rng, SIDE_PX, x_um / mpp, y_um / mpp)

    strands = 0.55 * smooth(28, 1.0) + 0.65 * smooth(45, 2.6) + 0.4 * smooth(60, 8)
    gaps = np.clip(smooth(30, 1.6) - 1.0, 0, None)
    fibers = to_bytes(strands - 1.3 * gaps + 0.12 * smooth(0.4, 0.4), 92, 26)
    return Textures(
        fibers=np.tile(fibers, (3, 3)),
        cytoplasm=to_bytes(0.5 * smooth(0.6, 0.6) + 0.7 * smooth(2.5, 2.5) + 0.6 * smooth(12, 12), 88, 13),
        haze=to_bytes(0.5 * smooth(0.7, 0.7) + 0.8 * smooth(6, 6), 14, 5),
        ragged=to_bytes(0.6 * smooth(1.2, 1.2) + 1.0 * smooth(5, 5), 128, 3),
        grain=to_bytes(rng.standard_normal((SIDE_PX, SIDE_PX, 3), dtype=np.float32), 4, 1.6),
    )
