"""Independent streams of random numbers, one a subject, so that a slide does not depend on the others."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a stream is for; the numbers are part of what a seed means, and stay."""

    PLAN = 0
    SITE = 1
    LAYOUT = 2
    CELLS = 3
    STAIN = 4
    ARTIFACTS = 5
    RENDERING = 6


def generator(seed: int, stream: Stream, *address: int) -> np.random.Generator:
    """The generator of one thing: `address` are the numbers that single it out."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, *address))))
