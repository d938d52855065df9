"""Independent streams of random numbers, one a subject.

Slide 7 must be the same slide in a cohort of 10 and of 1,000. So nothing is drawn from one long stream: each
thing (a tissue, a site, a patient, a slide) has a stream of its own, addressed by the seed and its number.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Stream(IntEnum):
    """What a stream is for; the numbers are part of what a seed means, and stay."""

    TISSUE = 0
    STAIN = 1
    MORPHOLOGY = 2
    SITE = 3
    LABELS = 4
    PAIRING = 5
    PATIENT = 6
    SLIDE_LAYOUT = 7
    SLIDE_FEATURES = 8
    OUTCOME = 9


def generator(seed: int, stream: Stream, *address: int) -> np.random.Generator:
    """The generator of one thing: `address` are the numbers that single it out."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, *address))))


def unit(vector: Floats) -> Floats:
    """The vector scaled to length 1."""
    return np.asarray(vector / np.sqrt(np.square(vector).sum()))


def orthonormal_rows(rng: np.random.Generator, count: int, width: int) -> Floats:
    """count x width random orthonormal rows, by Gram and Schmidt.

    A QR decomposition would do the same, with signs that differ between LAPACK builds.
    """
    rows = rng.standard_normal((count, width))
    for index in range(count):
        for earlier in rows[:index]:
            rows[index] -= (rows[index] * earlier).sum() * earlier
        rows[index] = unit(rows[index])
    return rows
