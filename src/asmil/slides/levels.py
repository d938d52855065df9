"""Levels of a pyramid: how much coarser each is, and which to read for a given resolution."""

from __future__ import annotations

from collections.abc import Sequence

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
