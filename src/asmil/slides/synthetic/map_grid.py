"""The coarse map for the layout of a slide, and blobs on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from asmil.arrays import Bytes, Floats32
from asmil.slides.synthetic.noise import coordinates, smooth_field
from asmil.slides.tissue.regions import Mask

NOMINAL_UM = 4.0


@dataclass(frozen=True)
class MapGrid:
    """Rows and columns of a map, and the side of a cell in pixels of the slide (an integer) and in microns."""

    shape: tuple[int, int]
    cell_px: int
    um: float

    @classmethod
    def over(cls, size_px: tuple[int, int], mpp: float) -> MapGrid:
        """The map of a slide: cells as close to 4 microns as integer pixels allow."""
        cell_px = max(1, round(NOMINAL_UM / mpp))
        width, height = size_px
        return cls((-(-height // cell_px), -(-width // cell_px)), cell_px, cell_px * mpp)

    def px(self, um: float) -> float:
        """A length in cells."""
        return um / self.um

    def area_mm2(self, mask: Mask) -> float:
        """The area of a mask."""
        return float(mask.sum()) * (self.um / 1000) ** 2

    def noise(self, rng: np.random.Generator, scale_um: float) -> Floats32:
        """Noise of about unit variance that changes over `scale_um`."""
        return smooth_field(rng, self.shape, max(1.0, self.px(scale_um)))

    def coordinates(self) -> tuple[Floats32, Floats32]:
        """x and y of the cells, to be broadcast."""
        return coordinates(self.shape)

    def to_border(self) -> Floats32:
        """Cells to the nearest border of the map."""
        x, y = self.coordinates()
        return np.minimum(np.minimum(x, self.shape[1] - 1 - x), np.minimum(y, self.shape[0] - 1 - y))

    def enlarged(self, field: NDArray[Any], left: int, top: int, width: int, height: int) -> NDArray[Any]:
        """A window of a map, interpolated at the pixels of the slide; the map's border is repeated beyond it.

        A crop is upsampled by an integer factor: much faster than a general warp, and without seams between windows.
        """
        cell = self.cell_px
        rows, columns = self.shape
        first_row, first_column = top // cell - 1, left // cell - 1
        last_row, last_column = -(-(top + height) // cell) + 1, -(-(left + width) // cell) + 1
        crop = field[max(first_row, 0) : min(last_row, rows), max(first_column, 0) : min(last_column, columns)]
        beyond = (max(-first_row, 0), max(last_row - rows, 0), max(-first_column, 0), max(last_column - columns, 0))
        if any(beyond):
            crop = cv2.copyMakeBorder(crop, *beyond, cv2.BORDER_REPLICATE)
        size = (crop.shape[1] * cell, crop.shape[0] * cell)
        larger = cv2.resize(crop, size, interpolation=cv2.INTER_LINEAR)
        row, column = top - first_row * cell, left - first_column * cell
        return np.asarray(larger[row : row + height, column : column + width])

    def signed_distance(self, mask: Mask) -> Bytes:
        """128 + microns to the border of a mask, positive inside, clipped to 1 ... 255."""
        binary = mask.astype(np.uint8)
        inside, outside = (cv2.distanceTransform(side, cv2.DIST_L2, 3) for side in (binary, 1 - binary))
        far = np.float32(256 / self.um)
        distance_um = cv2.GaussianBlur(np.clip(inside - outside, -far, far) * np.float32(self.um), (0, 0), 1.0)
        return np.asarray(np.clip(np.rint(128 + distance_um), 1, 255), dtype=np.uint8)


def raise_blob(
    rng: np.random.Generator, field: Floats32, center: tuple[float, float], radii: tuple[float, float]
) -> None:
    """Raise the field to 1 at the center, falling to 0 on a randomly rotated ellipse, and to -1 beyond it."""
    reach = 2 * max(radii)
    left, top = (max(0, int(place - reach)) for place in center)
    window = field[top : int(center[1] + reach) + 1, left : int(center[0] + reach) + 1]
    x, y = coordinates((window.shape[0], window.shape[1]))
    angle = rng.uniform(0, np.pi)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    dx, dy = x + np.float32(left - center[0]), y + np.float32(top - center[1])
    along, across = (dx * cos + dy * sin) / np.float32(radii[0]), (dy * cos - dx * sin) / np.float32(radii[1])
    np.maximum(window, 1 - np.sqrt(along**2 + across**2), out=window)


def points_in(rng: np.random.Generator, mask: Mask, count: int) -> list[tuple[int, int]]:
    """Random cells of a mask, as (x, y); none if it is empty."""
    cells = np.flatnonzero(mask)
    if not len(cells) or not count:
        return []
    return [(int(cell % mask.shape[1]), int(cell // mask.shape[1])) for cell in rng.choice(cells, count)]
