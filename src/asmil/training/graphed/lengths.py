"""The lengths that bags are padded to: few, so that few steps are recorded, and not much longer than the bag."""

from __future__ import annotations

SMALLEST_STEP = 8
PER_OCTAVE = 8


def padded_length(tiles: int, fewest: int) -> int:
    """The padded length of a bag of this many tiles: at most an eighth more; bags below `fewest` are not padded."""
    if tiles < fewest:
        return tiles
    step = max(SMALLEST_STEP, (1 << (tiles.bit_length() - 1)) // PER_OCTAVE)
    return -(-tiles // step) * step
