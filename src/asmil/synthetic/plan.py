"""What synthetic cohorts of features and of slides share: the slides of a cohort, and the random streams.

Slide 7 must be the same slide in a cohort of 10 and of 1,000. So nothing is drawn from one long stream: each tissue,
site, patient and slide has its own stream, identified by the seed and by its numbers, and slides are assigned to the
parts of a cohort by quota.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class PlannedSlide:
    """The name, patient, split and site of a slide that is not drawn yet; sites are counted from 0."""

    index: int
    slide: str
    patient: str
    split: str
    site: int

    @property
    def site_name(self) -> str:
        """The site as it is written into the manifest, counted from 1."""
        return f"site-{self.site + 1}"


def generator(seed: int, stream: int, *address: int) -> np.random.Generator:
    """The generator of a random stream. stream: what it is for; address: the numbers of its tissue, site, slide, ..."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, *address))))


def log_uniform(rng: np.random.Generator, low: float, high: float, size: int | None = None) -> Any:
    """A number whose logarithm is uniform, or `size` of them."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def parts_by_quota(slides: int, quota: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The part of every slide, and its rank in the part.

    Each slide goes to the part that is furthest below its quota, so the first n slides are shared out like n slides.

    >>> [part for part, _ in parts_by_quota(5, {"train": 3, "test": 2})]
    ['train', 'test', 'train', 'test', 'train']
    """
    total = sum(quota.values())
    taken = dict.fromkeys(quota, 0)
    for done in range(1, slides + 1):
        part = max(taken, key=lambda name: quota[name] * done - total * taken[name])
        yield part, taken[part]
        taken[part] += 1


def slide_name(index: int) -> str:
    """The name of a slide, counted from 0."""
    return f"slide-{index:04d}"


def patient_name(first_slide: int) -> str:
    """The name of a patient, after the first of the patient's slides."""
    return f"patient-{first_slide:04d}"
