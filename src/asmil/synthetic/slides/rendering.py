"""The pixels of a synthetic slide, block by block: its stain, its light and artifacts, its cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels
from asmil.synthetic.plan import generator
from asmil.synthetic.slides.cells import Cells, Outlines
from asmil.synthetic.slides.layout import Layout
from asmil.synthetic.slides.noise import coordinates, to_bytes, torus_texture
from asmil.synthetic.slides.plan import SlidePlan, Stream, SyntheticSlidesConfig
from asmil.synthetic.slides.sprites import longest_um, sprite_bank
from asmil.tables.arrays import Bytes, Floats32

HEMATOXYLIN = (0.60, 0.72, 0.36)
EOSIN = (0.16, 0.82, 0.54)
DENSITY_AT_255 = (2.3, 1.7)
PALE = 0.12
"""Share of the slides that are stained weakly."""


@dataclass(frozen=True)
class Stain:
    """256 x 1 x 3 tables: the light that each concentration lets through, by optical density.

        intensity = white * exp(-(h * H + e * E)),    h, e: directions in RGB optical density

    With a table of each factor, rendering takes two lookups and one product per pixel.
    """

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


SIDE_PX = 1024
BANK_SEED = 20_241
INKS = ((28, 60, 160), (30, 120, 70), (35, 35, 40))
"""Blue, green, black: the light that a full stroke transmits."""
DARK_EDGE = 0.12
"""Share of the slides with a dark edge."""


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
        centers = np.rint(cells.centers / self._mpp).astype(np.int64) - (left, top)
        chosen = np.flatnonzero(((centers >= reach) & (centers < (width - reach, height - reach))).all(axis=1))
        x, y = centers[chosen].T
        allowed = (clear[y, x] == 0) & ~(cells.in_stroma[chosen] & (body[y, x] > 0))
        layer = np.zeros((height, width), dtype=np.uint8)
        for column, row, number in np.stack([x, y, cells.sprites[chosen]], axis=1)[allowed].tolist():
            sprite = self._sprites[number]
            half = len(sprite) // 2
            under = layer[row - half : row + half + 1, column - half : column + half + 1]
            np.maximum(under, sprite, out=under)
        return layer

    def _stroma(self, left: int, top: int, width: int, height: int) -> Bytes:
        """Fibers: the texture of streaks, looked up along the bent coordinates."""
        looked_up = []
        for field in self._fiber_px:
            coordinate = self._layout.grid.enlarged(field, left, top, width, height)
            coordinate -= SIDE_PX * (np.floor(coordinate[height // 2, width // 2] / SIDE_PX) - 1)
            looked_up.append(coordinate)
        stroma = cv2.remap(self._fibers, looked_up[0], looked_up[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        return np.asarray(stroma, dtype=np.uint8)

    def _draw_red_cells(self, eosin: Bytes, left: int, top: int) -> None:
        radius = max(1, round(RED_CELL_RADIUS_UM / self._mpp))
        centers = np.rint(self._cells.red_cells / self._mpp).astype(np.int64) - (left, top)
        met = ((centers >= -radius) & (centers < np.add(eosin.shape[::-1], radius))).all(axis=1)
        for x, y in centers[met].tolist():
            cv2.circle(eosin, (x, y), radius, RED_CELL_EOSIN, -1)


def _blurred(layer: NDArray[Any]) -> Bytes:
    """Blur a layer to the sharpness of a microscope."""
    return np.asarray(cv2.GaussianBlur(layer, (3, 3), 0), dtype=np.uint8)


def draw_light(config: SyntheticSlidesConfig, plan: SlidePlan, layout: Layout) -> Pixels:
    """The light that reaches the camera through unstained areas, on the map of the layout, RGB."""
    rng = generator(config.seed, Stream.ARTIFACTS, plan.index)
    shape = layout.tissue.shape
    y, x = np.ogrid[-1 : 1 : shape[0] * 1j, -1 : 1 : shape[1] * 1j]
    falloff = 1 - rng.uniform(0.005, 0.03) * (x**2 + y**2)
    white = rng.uniform(240, 250) + rng.uniform(-3, 3, 3)
    light = np.asarray(falloff[..., None] * white, dtype=np.float64)
    if rng.random() < config.pen:
        ink = np.array(INKS[rng.integers(len(INKS))]) / 255
        light *= 1 - _pen(rng, layout)[..., None] * (1 - ink)
    if rng.random() < DARK_EDGE:
        light *= _edge(rng, layout)[..., None]
    return np.clip(np.rint(light), 0, 255).astype(np.uint8)


def _pen(rng: np.random.Generator, layout: Layout) -> NDArray[np.float64]:
    """The amount of ink at each place, 0 to 1: a stroke next to or over the tissue, and some dots."""
    shape = layout.tissue.shape
    ink = np.zeros(shape, dtype=np.uint8)
    side = min(shape)
    start = rng.uniform(0.05, 0.95, 2) * shape[::-1]
    heading = rng.uniform(0, 2 * np.pi) + np.linspace(0, rng.uniform(-2.5, 2.5), 40)
    step = rng.uniform(0.4, 1.0) * side / 40
    path = start + np.cumsum(np.stack([np.cos(heading), np.sin(heading)], axis=1) * step, axis=0)
    cv2.polylines(ink, [path.astype(np.int32)], False, 255, int(layout.grid.px(rng.uniform(60, 130))), cv2.LINE_AA)
    for center in rng.uniform(0.03, 0.97, (int(rng.integers(0, 4)), 2)) * shape[::-1]:
        cv2.circle(
            ink, (int(center[0]), int(center[1])), int(layout.grid.px(rng.uniform(40, 90))), 255, -1, cv2.LINE_AA
        )
    covered = cv2.GaussianBlur(ink, (0, 0), layout.grid.px(8)) / 255.0
    grain = cv2.GaussianBlur(rng.standard_normal(shape).astype(np.float32), (0, 0), layout.grid.px(24))
    return np.asarray(covered * np.clip(rng.uniform(0.75, 0.95) + 0.8 * grain, 0.3, 1), dtype=np.float64)


def _edge(rng: np.random.Generator, layout: Layout) -> NDArray[np.float64]:
    """A factor that falls to nearly 0 in a slightly tilted band along one side."""
    columns, rows = coordinates(layout.grid.shape)
    side = rng.integers(4)
    depth, along = (rows, columns) if side % 2 else (columns, rows)
    depth = depth if side < 2 else depth.max() - depth
    border = layout.grid.px(rng.uniform(60, 140)) + rng.uniform(-0.03, 0.03) * along
    beyond = np.clip((depth - border) / layout.grid.px(8) + 0.5, 0, 1)
    darkest = rng.uniform(0.05, 0.3)
    return np.asarray(darkest + (1 - darkest) * beyond, dtype=np.float64)
