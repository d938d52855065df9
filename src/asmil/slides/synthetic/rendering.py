"""The pixels of a synthetic slide, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.arrays import Bytes, Floats32
from asmil.slides.image import Pixels
from asmil.slides.synthetic.cells import Cells, Outlines
from asmil.slides.synthetic.layout import Layout
from asmil.slides.synthetic.noise import to_bytes, torus_texture
from asmil.slides.synthetic.sprites import longest_um, sprite_bank
from asmil.slides.synthetic.stain import Stain

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
    """The seamless textures at a resolution; created once per process and resolution."""
    rng = np.random.default_rng(BANK_SEED)

    def smooth(x_um: float, y_um: float) -> Floats32:
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


BLOCK_PX = SIDE_PX
"""A block is as large as a texture, so that textures match at the borders of blocks."""
SUBPIXEL_BITS = 4
CYTOPLASM_HEMATOXYLIN = 18
RED_CELL_EOSIN = 205
RED_CELL_RADIUS_UM = 3.3


class SlideRenderer:
    """A slide ready to be rendered: its layout, its cells and the data shared by all blocks."""

    def __init__(self, layout: Layout, cells: Cells, stain: Stain, light: Pixels, rng: np.random.Generator) -> None:
        self._layout, self._cells, self._stain, self._light = layout, cells, stain, light
        self._mpp = layout.mpp
        bank = texture_bank(layout.mpp)
        roll = rng.integers(0, SIDE_PX, 2)
        self._fibers = bank.fibers
        self._fiber_px = [field / np.float32(layout.mpp) for field in (layout.fiber_along, layout.fiber_across)]
        self._cytoplasm, self._haze, self._ragged, self._grain = (
            np.roll(texture, roll, axis=(0, 1)) for texture in (bank.cytoplasm, bank.haze, bank.ragged, bank.grain)
        )
        self._cytoplasm_haze = self._haze + np.uint8(CYTOPLASM_HEMATOXYLIN)
        self._sprites = sprite_bank(layout.mpp)
        self._reach_px = int(np.ceil(longest_um() / 2 / layout.mpp)) + 2
        self._tissue = layout.grid.signed_distance(layout.tissue)
        self._crowded = layout.grid.signed_distance(layout.nests | layout.lymphoid)

    def strips(self) -> Iterator[Pixels]:
        """The slide from top to bottom, in strips of a block's height."""
        width, height = self._layout.size_px
        for top in range(0, height, BLOCK_PX):
            rows = min(BLOCK_PX, height - top)
            yield np.concatenate(
                [self.block(left, top, min(BLOCK_PX, width - left), rows) for left in range(0, width, BLOCK_PX)],
                axis=1,
            )

    def block(self, left: int, top: int, width: int, height: int) -> Pixels:
        """Pixels of a block; its corner is a multiple of BLOCK_PX."""
        light = self._layout.grid.enlarged(self._light, left, top, width, height)
        tissue = self._layout.grid.enlarged(self._tissue, left, top, width, height)
        inside = np.asarray(cv2.compare(tissue, self._ragged[:height, :width], cv2.CMP_GT), dtype=np.uint8)
        if cv2.hasNonZero(inside):
            hematoxylin, eosin = self._concentrations(left, top, width, height, inside)
            light = cv2.multiply(light, self._stain.color(hematoxylin, eosin), scale=1 / 255)
        return np.asarray(cv2.subtract(light, self._grain[:height, :width]), dtype=np.uint8)

    def _concentrations(self, left: int, top: int, width: int, height: int, inside: Bytes) -> tuple[Bytes, Bytes]:
        pad = 2 * self._reach_px
        window = (left - pad, top - pad, width + 2 * pad, height + 2 * pad)
        body, clear = self._masks(*window)
        nuclei = self._nuclei(*window, body, clear)
        body, clear, nuclei = (layer[pad : pad + height, pad : pad + width] for layer in (body, clear, nuclei))
        closed = cv2.bitwise_not(clear)
        eosin = self._stroma(left, top, width, height)
        cv2.copyTo(self._cytoplasm[:height, :width], body, eosin)
        eosin = np.asarray(cv2.bitwise_and(eosin, closed), dtype=np.uint8)
        self._draw_red_cells(eosin, left, top)
        haze = self._haze[:height, :width].copy()
        cv2.copyTo(self._cytoplasm_haze[:height, :width], body, haze)
        hematoxylin = cv2.bitwise_and(cv2.max(nuclei, haze), closed)
        return _blurred(cv2.bitwise_and(hematoxylin, inside)), _blurred(cv2.bitwise_and(eosin, inside))

    def _masks(self, left: int, top: int, width: int, height: int) -> tuple[Bytes, Bytes]:
        """Masks of the cytoplasm of glands, nests and lymphocytes, and of openings (lumens, vacuoles, vessels)."""
        crowded = self._layout.grid.enlarged(self._crowded, left, top, width, height)
        body = np.asarray(cv2.threshold(crowded, 128, 255, cv2.THRESH_BINARY)[1], dtype=np.uint8)
        clear = np.zeros((height, width), dtype=np.uint8)
        cells = self._cells
        for mask, outlines in (
            (body, cells.glands),
            (clear, cells.lumens),
            (clear, cells.vacuoles),
            (clear, cells.vessels),
        ):
            self._fill(mask, outlines, left, top)
        return body, clear

    def _fill(self, mask: Bytes, outlines: Outlines, left: int, top: int) -> None:
        corner = np.array([left, top])
        low, high = (extreme / self._mpp - corner for extreme in (outlines.min(axis=1), outlines.max(axis=1)))
        met = ((high >= 0) & (low < mask.shape[::-1])).all(axis=1)
        points = ((outlines[met] / self._mpp - corner) * 2**SUBPIXEL_BITS).astype(np.int32)
        for outline in points:
            cv2.fillPoly(mask, [outline], 255, shift=SUBPIXEL_BITS)

    def _nuclei(self, left: int, top: int, width: int, height: int, body: Bytes, clear: Bytes) -> Bytes:
        """Nuclei whose centers are far enough inside for the whole sprite; others do not reach the block."""
        cells, reach = self._cells.nuclei, self._reach_px
        places = np.rint(cells.centers / self._mpp).astype(np.int64) - (left, top)
        chosen = np.flatnonzero(((places >= reach) & (places < (width - reach, height - reach))).all(axis=1))
        x, y = places[chosen].T
        allowed = (clear[y, x] == 0) & ~(cells.in_stroma[chosen] & (body[y, x] > 0))
        layer = np.zeros((height, width), dtype=np.uint8)
        sprites = self._sprites
        for column, row, number in zip(
            x[allowed].tolist(), y[allowed].tolist(), cells.sprites[chosen][allowed].tolist(), strict=True
        ):
            sprite = sprites[number]
            half = len(sprite) // 2
            under = layer[row - half : row + half + 1, column - half : column + half + 1]
            np.maximum(under, sprite, out=under)
        return layer

    def _stroma(self, left: int, top: int, width: int, height: int) -> Bytes:
        """Fibers: the texture of streaks, looked up along the bent coordinates."""
        places = []
        for field in self._fiber_px:
            place = self._layout.grid.enlarged(field, left, top, width, height)
            place -= SIDE_PX * (np.floor(place[height // 2, width // 2] / SIDE_PX) - 1)
            places.append(place)
        stroma = cv2.remap(self._fibers, places[0], places[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        return np.asarray(stroma, dtype=np.uint8)

    def _draw_red_cells(self, eosin: Bytes, left: int, top: int) -> None:
        radius = max(1, round(RED_CELL_RADIUS_UM / self._mpp))
        places = np.rint(self._cells.red_cells / self._mpp).astype(np.int64) - (left, top)
        met = ((places >= -radius) & (places < np.add(eosin.shape[::-1], radius))).all(axis=1)
        for x, y in places[met].tolist():
            cv2.circle(eosin, (x, y), radius, RED_CELL_EOSIN, -1)


def _blurred(layer: NDArray[Any]) -> Bytes:
    """Blur a layer to the sharpness of a microscope."""
    return np.asarray(cv2.GaussianBlur(layer, (3, 3), 0), dtype=np.uint8)
