"""CLAM's steps from a picture to tiles in their plain form: one tile after another, each asked of OpenCV.

Written from the description of the steps, as the yardstick of speed and of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Contour = Any
Point = tuple[float, float]
Check = Callable[[Contour, Point, int], bool]


def plain_contours(
    pixels: NDArray[np.uint8],
    downsample: tuple[float, float],
    sthresh: int = 8,
    mthresh: int = 7,
    close: int = 4,
    a_t: float = 100,
    a_h: float = 16,
    max_n_holes: int = 8,
) -> list[tuple[Contour, list[Contour]]]:
    """The kept outlines of a level's picture with their holes, in level-0 pixels."""
    saturation = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)[:, :, 1]
    blurred = cv2.medianBlur(saturation, mthresh)
    _, mask = cv2.threshold(blurred, sthresh, 255, cv2.THRESH_BINARY)
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((close, close), np.uint8))
    contours, hierarchy = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    if hierarchy is None:
        return []
    parents = hierarchy[0][:, 3]
    unit = int(512**2 / (downsample[0] * downsample[1]))
    kept = []
    for place in np.flatnonzero(parents == -1).tolist():
        holes = [contours[hole] for hole in np.flatnonzero(parents == place).tolist()]
        area = cv2.contourArea(contours[place]) - sum(cv2.contourArea(hole) for hole in holes)
        if area == 0 or area <= a_t * unit:
            continue
        holes = sorted(holes, key=cv2.contourArea, reverse=True)[:max_n_holes]
        holes = [hole for hole in holes if cv2.contourArea(hole) > a_h * unit]
        scale = np.array(downsample)
        kept.append(((contours[place] * scale).astype(np.int32), [(hole * scale).astype(np.int32) for hole in holes]))
    return kept


def plain_coordinates(
    contours: list[tuple[Contour, list[Contour]]],
    size: tuple[int, int],
    side: int,
    step: int,
    check: str = "four_pt",
    padding: bool = True,
) -> list[tuple[int, int]]:
    """The corners of the tiles, one asked after the other."""
    found: list[tuple[int, int]] = []
    for outline, holes in contours:
        x0, y0, width, height = cv2.boundingRect(outline)
        stop_x, stop_y = x0 + width, y0 + height
        if not padding:
            stop_x, stop_y = min(stop_x, size[0] - side + 1), min(stop_y, size[1] - side + 1)
        for x in range(x0, stop_x, step):
            found.extend(
                (x, y)
                for y in range(y0, stop_y, step)
                if CHECKS[check](outline, (x, y), side) and not in_holes(holes, (x, y), side)
            )
    return found


def in_holes(holes: list[Contour], corner: Point, side: int) -> bool:
    """Whether the center of a tile is strictly inside a hole."""
    center = (corner[0] + side / 2, corner[1] + side / 2)
    return any(cv2.pointPolygonTest(hole, center, False) > 0 for hole in holes)


def _contains(outline: Contour, point: Point) -> bool:
    return cv2.pointPolygonTest(outline, (float(point[0]), float(point[1])), False) >= 0


def _four_points(corner: Point, side: int) -> list[Point]:
    x, y = corner[0] + side // 2, corner[1] + side // 2
    reach = int(side // 2 * 0.5)
    if reach == 0:
        return [(x, y)]
    return [(x - reach, y - reach), (x + reach, y + reach), (x + reach, y - reach), (x - reach, y + reach)]


CHECKS: dict[str, Check] = {
    "four_pt": lambda outline, corner, side: any(_contains(outline, p) for p in _four_points(corner, side)),
    "four_pt_hard": lambda outline, corner, side: all(_contains(outline, p) for p in _four_points(corner, side)),
    "center": lambda outline, corner, side: _contains(outline, (corner[0] + side // 2, corner[1] + side // 2)),
    "basic": lambda outline, corner, side: _contains(outline, corner),
}
