"""A whole-slide image, independent of the file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from asmil.slides.file_names import slide_name

Size = tuple[int, int]
LEVEL_TOLERANCE = 0.02
"""A level this much coarser than requested is still used."""


def true_downsamples(level_sizes: Sequence[Size]) -> tuple[tuple[float, float], ...]:
    """Level-0 pixels per pixel of each level, (x, y).

    Writers halve a level and drop the remainder: 4443 becomes 2221, and W0 / W would be 2.0005. If an
    integer explains both sides of a level, it is used.

    >>> true_downsamples([(4443, 3567), (2221, 1783), (1000, 800)])
    ((1.0, 1.0), (2.0, 2.0), (4.443, 4.45875))
    """
    return tuple(_downsample(level_sizes[0], size) for size in level_sizes)


def _downsample(size: Size, level_size: Size) -> tuple[float, float]:
    exact = (size[0] / level_size[0], size[1] / level_size[1])
    longer = 0 if level_size[0] >= level_size[1] else 1
    whole = max(1, round(exact[longer]))
    explained = all(length in (full // whole, -(-full // whole)) for full, length in zip(size, level_size, strict=True))
    return (float(whole), float(whole)) if explained else exact


def choose_level(downsamples: Sequence[tuple[float, float]], wanted: float, tolerance: float = LEVEL_TOLERANCE) -> int:
    """The coarsest level that is not coarser than `wanted` level-0 pixels per pixel; level 0 if all are.

    >>> choose_level([(1, 1), (4, 4), (16, 16)], 8.0)
    1
    """
    finest = wanted * (1 + tolerance)
    fitting = [level for level, downsample in enumerate(downsamples) if max(downsample) <= finest]
    return max(fitting, key=lambda level: max(downsamples[level]), default=0)


Pixels = NDArray[np.uint8]
"""Height x width x 3, RGB."""


@dataclass(frozen=True)
class Resolution:
    """Microns per level-0 pixel, and the source of the value.

    source: "given", "openslide", "tiff", "ome", a vendor's key, or "objective power 20 (guess)"
    """

    mpp_x: float
    mpp_y: float
    source: str

    @property
    def mpp(self) -> float:
        """The mean of both axes."""
        return (self.mpp_x + self.mpp_y) / 2


class SlideImage(ABC):
    """An open slide. Positions are level-0 pixels, sizes are pixels of the level that is read.

    name: the name of the slide (its file name without extension)
    reader, vendor: the library that reads it, and the vendor in the file (or None)
    level_sizes: (width, height) of each level, the finest first
    resolution: None if neither the file nor the user states it

    Reading is safe from several threads at once.
    """

    reader: str

    def __init__(
        self, path: Path, level_sizes: Sequence[Size], resolution: Resolution | None, vendor: str | None = None
    ) -> None:
        self.path, self.name = path, slide_name(path)
        self.level_sizes, self.resolution, self.vendor = tuple(level_sizes), resolution, vendor

    @cached_property
    def downsamples(self) -> tuple[tuple[float, float], ...]:
        """Level-0 pixels per pixel of each level, see `true_downsamples`."""
        return true_downsamples(self.level_sizes)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of level 0."""
        return self.level_sizes[0]

    @property
    def level_downsamples(self) -> tuple[tuple[float, float], ...]:
        """(W0 / W, H0 / H) of each level, axis by axis."""
        width, height = self.size
        return tuple((width / w, height / h) for w, h in self.level_sizes)

    @property
    def bounds_origin(self) -> tuple[int, int]:
        """Level-0 position of the scanned part, which is QuPath's origin; (0, 0) if the file does not state it."""
        return (0, 0)

    @abstractmethod
    def read(self, x: int, y: int, level: int, width: int, height: int, outside: int = 255) -> Pixels:
        """A region of a level; (x, y) is its corner at level 0.

        outside: the gray value of transparent pixels and of pixels beyond the slide
        """

    def stored_tile_size(self, level: int) -> tuple[int, int] | None:
        """(width, height) of the tiles in which the file stores a level; None if it does not store tiles."""
        return None

    def stored_jpeg(self, level: int, column: int, row: int) -> bytes | None:
        """A stored tile as a JPEG file that any program can decode, without decoding it here.

        None unless the file stores the level as JPEG tiles. The last tiles of a row or column may extend beyond the
        level.
        """
        return None

    @property
    def held_bytes(self) -> int:
        """Memory that the open slide needs until it is closed; 0 for slides that are read piece by piece."""
        return 0

    def decoded_at_once(self, level: int) -> int:
        """Pixels that are decoded even for the smallest region of a level: those of a stored tile or strip."""
        width, height = self.stored_tile_size(level) or (0, 0)
        return width * height

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
