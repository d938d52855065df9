"""Artifacts over a slide: uneven light, pen marks, the dark edge of the glass."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.slides.image import Pixels
from asmil.slides.synthetic.layout import Layout
from asmil.slides.synthetic.plan import SlidePlan, Stream, SyntheticSlidesConfig
from asmil.synthetic_plan import generator

INKS = ((28, 60, 160), (30, 120, 70), (35, 35, 40))
"""Blue, green, black: the light that a full stroke lets through."""
DARK_EDGE = 0.12
"""Share of the slides with a dark edge."""


def draw_light(config: SyntheticSlidesConfig, plan: SlidePlan, layout: Layout) -> Pixels:
    """The light that reaches the camera where nothing is stained, on the map of the layout, RGB."""
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
    for place in rng.uniform(0.03, 0.97, (int(rng.integers(0, 4)), 2)) * shape[::-1]:
        cv2.circle(ink, (int(place[0]), int(place[1])), int(layout.grid.px(rng.uniform(40, 90))), 255, -1, cv2.LINE_AA)
    covered = cv2.GaussianBlur(ink, (0, 0), layout.grid.px(8)) / 255.0
    grain = cv2.GaussianBlur(rng.standard_normal(shape).astype(np.float32), (0, 0), layout.grid.px(24))
    return np.asarray(covered * np.clip(rng.uniform(0.75, 0.95) + 0.8 * grain, 0.3, 1), dtype=np.float64)


def _edge(rng: np.random.Generator, layout: Layout) -> NDArray[np.float64]:
    """A factor that falls to nearly nothing in a slightly tilted band along one side."""
    columns, rows = layout.grid.coordinates()
    side = rng.integers(4)
    depth, along = (rows, columns) if side % 2 else (columns, rows)
    depth = depth if side < 2 else depth.max() - depth
    border = layout.grid.px(rng.uniform(60, 140)) + rng.uniform(-0.03, 0.03) * along
    beyond = np.clip((depth - border) / layout.grid.px(8) + 0.5, 0, 1)
    darkest = rng.uniform(0.05, 0.3)
    return np.asarray(darkest + (1 - darkest) * beyond, dtype=np.float64)
