"""Recognize the features of another encoder by how their dimensions vary together.

Means and spreads of single dimensions differ between tissues almost as much as between encoders. The correlations
between dimensions belong to the encoder: the principal directions of the training tiles also explain the tiles of
other tissues and sites, and explain those of another encoder no better than chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asmil.cohort.manifest import Slide
from asmil.cohort.reader import open_features
from asmil.tables.arrays import Floats, Floats32, Integers

SAMPLED_SLIDES, SAMPLED_TILES, COMPARED_DIMENSIONS = 256, 32, 512
"""Slides, tiles per slide and dimensions that the structure is fitted on; evenly spaced, so the same every time."""
COMPARED_TILES, FEWEST_TILES = 512, 8
"""Tiles of a slide that are compared at most; a slide with fewer tiles than this cannot be compared."""
FEWEST_SLIDES = 8
EXPLAINED, LARGEST_PART = 0.9, 1 / 3
"""The directions explain this share of the variance, unless that takes more than this part of the dimensions."""
LEAST_REFERENCE, LEAST_HELD_OUT = 0.1, 0.5
"""Features whose directions explain hardly more of held-out training slides than chance cannot be recognized."""
LEAST_SCORE, LARGEST_RATIO = 0.3, 5.0
"""Below this score, or with values larger or smaller by more than this factor, features differ from the training."""


@dataclass(frozen=True, eq=False)
class FeatureStructure:
    """What the tiles of the training slides have in common.

    directions: d x m, principal directions of tiles that are centered and scaled within each slide, in all dimensions
        of the features or in `COMPARED_DIMENSIONS` of them
    rms: root mean square of the feature values
    reference: the share of variance that the directions explain in slides they were not fitted on, beyond the share
        m / d that random directions explain; 0 if these features cannot be recognized
    """

    directions: Floats32
    rms: float
    reference: float


@dataclass(frozen=True)
class FeatureMatch:
    """How the features of a slide compare with those of the training.

    score: the share of variance that the training directions explain, beyond chance and relative to training slides:
        about 1 for the same encoder, about 0 for another; None if it cannot be computed
    ratio: the root mean square of the values relative to the training
    """

    score: float | None
    ratio: float

    @property
    def difference(self) -> str:
        """Why these features are probably not of the training's encoder; empty if they may be."""
        if self.score is not None and self.score < LEAST_SCORE:
            return f"the features vary unlike those of the training (score {self.score:.2f}, expected about 1)"
        if not 1 / LARGEST_RATIO <= self.ratio <= LARGEST_RATIO:
            return f"the features are {self.ratio:.2g} times as large as those of the training"
        return ""


def sampled_tiles(slides: Sequence[Slide]) -> list[Floats32]:
    """Some tiles of some of the slides, evenly spaced.

    Slides with few tiles are left out, and those with values that are not finite: training refuses these by name.
    """
    chosen = [slides[i] for i in spaced(len(slides), SAMPLED_SLIDES)]
    samples = []
    for slide in chosen:
        with open_features(slide.source, mmap=True) as file:
            if file.info.n_tiles >= FEWEST_TILES:
                samples.append(file.features(spaced(file.info.n_tiles, SAMPLED_TILES)).float().numpy())
    return [tiles for tiles in samples if np.isfinite(tiles).all()]


def fit_structure(bags: Sequence[Floats32]) -> FeatureStructure | None:
    """The structure of tiles (n x D) of several slides; None if there are too few slides."""
    if len(bags) < FEWEST_SLIDES:
        return None
    chosen = [_dimensions(bag) for bag in bags]
    rms = float(np.sqrt(np.mean([np.mean(bag**2) for bag in chosen])))
    halves = chosen[::2], chosen[1::2]
    fitted = [_directions(half) for half in halves]
    held_out = [_beyond_chance(fitted[1 - i], bag) for i, half in enumerate(halves) for bag in half]
    reference = float(np.median(held_out))
    if reference < LEAST_REFERENCE or np.quantile(held_out, 0.05) < LEAST_HELD_OUT * reference:
        reference = 0.0
    return FeatureStructure(_directions(chosen), rms, reference)


def compare_features(structure: FeatureStructure, tiles: Floats32) -> FeatureMatch:
    """Compare the tiles (n x D) of a slide with the training."""
    chosen = _dimensions(tiles[spaced(len(tiles), COMPARED_TILES)])
    rms = float(np.sqrt(np.mean(chosen**2)))
    score = None
    if structure.reference > 0 and len(chosen) >= FEWEST_TILES:
        score = _beyond_chance(structure.directions, chosen) / structure.reference
    return FeatureMatch(score, rms / structure.rms if structure.rms > 0 else 1.0)


def _directions(bags: Sequence[Floats]) -> Floats32:
    """d x m: the first principal directions of the tiles of all slides."""
    centered = np.concatenate([bag - bag.mean(axis=0) for bag in bags])
    tiles = _scaled(centered)
    variances, directions = np.linalg.eigh(tiles.T @ tiles / len(tiles))
    explained = np.cumsum(variances[::-1]) / max(float(variances.sum()), 1e-30)
    count = min(int(np.searchsorted(explained, EXPLAINED)) + 1, max(1, int(LARGEST_PART * tiles.shape[1])))
    return np.ascontiguousarray(directions[:, ::-1][:, :count], dtype=np.float32)


def _beyond_chance(directions: Floats32, tiles: Floats) -> float:
    """The share of the variance of a slide's tiles that the directions explain, less the share of random directions."""
    scaled = _scaled(tiles - tiles.mean(axis=0))
    total = float((scaled**2).sum())
    explained = float(((scaled @ directions) ** 2).sum()) / total if total > 0 else 0.0
    width, count = directions.shape
    return explained - float(count / width)


def _scaled(centered: Floats) -> Floats:
    """Dimensions of equal variance, so that a few large ones do not decide; constant ones stay 0."""
    spread = np.sqrt((centered**2).mean(axis=0))
    return np.asarray(centered / np.where(spread > 0, spread, 1))


def _dimensions(tiles: Floats32) -> Floats:
    # squares of any finite feature value fit into float64
    return tiles[:, spaced(tiles.shape[1], COMPARED_DIMENSIONS)].astype(np.float64)


def spaced(count: int, most: int) -> Integers:
    """At most `most` of the numbers 0 to count - 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
