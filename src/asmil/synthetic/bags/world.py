"""The features of a synthetic world: tissues, tumor morphologies and offsets shared by whole slides.

A tile of appearance a on slide s of patient p and site t has the features

    x = center_a + L_a' z + e + stain_s + patient_p + site_t,    z ~ N(0, I_r), e ~ N(0, I_D)

so that tiles of one appearance spread with covariance I + L_a' L_a: a few wide directions in isotropic
noise of variance 1. A tumor morphology m is a step away from a normal tissue c, center_m = center_c +
delta_m, with the Mahalanobis length of delta_m under the covariance of c equal to `separation`. The step has
four parts: along the wide directions of c (natural variation looks a little like tumor), along the stain
axes (tumor is darker), along a direction all morphologies share, and along one of its own.

With three classes, atypical morphologies are one step away and malignant ones two steps in the same direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from asmil.synthetic.bags.plan import Stream, SyntheticConfig
from asmil.synthetic.plan import generator
from asmil.tables.arrays import Floats, Integers

SUB_MORPHOLOGIES = 3
TISSUE_SPACING = 8.0
WIDE_DIRECTIONS = 6
WIDEST_SD, SD_DECAY = 2.0, 0.8
STAIN_AXES = 4
STEP_SHARES = {"wide": 0.25, "stain": 0.25, "shared": 0.25, "own": 0.25}


@dataclass(frozen=True)
class World:
    """Appearances (normal tissues first, then morphologies 1, 2, ...) and the axes of the stain.

    centers: A x D; wide: A x r x D orthonormal rows; wide_sd: r; stain_axes: 4 x D
    """

    config: SyntheticConfig
    centers: Floats
    wide: Floats
    wide_sd: Floats
    stain_axes: Floats

    def appearance(self, tissue: Integers, morphology: Integers) -> Integers:
        """Index into the appearances: the morphology if there is one, else the tissue."""
        return np.asarray(np.where(morphology > 0, self.config.clusters + morphology - 1, tissue))

    def tiles(self, rng: np.random.Generator, appearance: Integers) -> npt.NDArray[np.float32]:
        """N x D features without the offsets of the slide."""
        features = rng.standard_normal((len(appearance), self.config.width), dtype=np.float32)
        wide = rng.standard_normal((len(appearance), WIDE_DIRECTIONS)) * self.wide_sd
        for index in np.unique(appearance):
            tiles = np.flatnonzero(appearance == index)
            features[tiles] += (self.centers[index] + wide[tiles] @ self.wide[index]).astype(np.float32)
        return features

    def stain_offset(self, rng: np.random.Generator) -> Floats:
        """D: an offset along the stain axes, with expected squared length stain_shift squared."""
        scale = self.config.stain_shift / np.sqrt(STAIN_AXES)
        return np.asarray(scale * (rng.standard_normal(STAIN_AXES) @ self.stain_axes))

    def patient_offset(self, rng: np.random.Generator) -> Floats:
        """D: an offset in any direction, of length patient_shift."""
        return self.config.patient_shift * unit(rng.standard_normal(self.config.width))

    def site_offset(self, site: int) -> Floats:
        """D: the shift of a site, of length site_shift, half of it (squared) along the stain axes."""
        rng = generator(self.config.seed, Stream.SITE, site)
        stain = unit(rng.standard_normal(STAIN_AXES) @ self.stain_axes)
        other = unit(rng.standard_normal(self.config.width))
        return self.config.site_shift * unit(stain + other)


def build_world(config: SyntheticConfig) -> World:
    """Draw the appearances; they depend only on the seed and the width."""
    stain_axes = orthonormal_rows(generator(config.seed, Stream.STAIN), STAIN_AXES, config.width)
    wide_sd = np.array([WIDEST_SD * SD_DECAY**k for k in range(WIDE_DIRECTIONS)])
    centers, wide = [], []
    for tissue in range(config.clusters):
        rng = generator(config.seed, Stream.TISSUE, tissue)
        centers.append(rng.standard_normal(config.width) * TISSUE_SPACING / np.sqrt(2 * config.width))
        wide.append(orthonormal_rows(rng, WIDE_DIRECTIONS, config.width))
    for grade in range(1, config.classes):
        for morphology in range(SUB_MORPHOLOGIES):
            step = _step(config, morphology, wide[morphology], wide_sd, stain_axes)
            centers.append(centers[morphology] + grade * step)
            rng = generator(config.seed, Stream.MORPHOLOGY, grade, morphology)
            wide.append(orthonormal_rows(rng, WIDE_DIRECTIONS, config.width))
    return World(config, np.stack(centers), np.stack(wide), wide_sd, stain_axes)


def mahalanobis(step: Floats, wide: Floats, wide_sd: Floats) -> float:
    """Length of a step under the covariance I + sum_k s_k^2 q_k q_k', with orthonormal q_k (rows of `wide`).

    By Woodbury: |d|^2 - sum_k (q_k . d)^2 s_k^2 / (1 + s_k^2), square root.
    """
    along = wide @ step
    return float(np.sqrt(np.square(step).sum() - (np.square(along * wide_sd) / (1 + wide_sd**2)).sum()))


def _step(config: SyntheticConfig, morphology: int, wide: Floats, wide_sd: Floats, stain_axes: Floats) -> Floats:
    shared = unit(generator(config.seed, Stream.MORPHOLOGY, 0).standard_normal(config.width))
    rng = generator(config.seed, Stream.MORPHOLOGY, 0, morphology)
    parts = {
        "wide": unit(rng.standard_normal(len(wide)) @ wide),
        "stain": unit(rng.standard_normal(len(stain_axes)) @ stain_axes),
        "shared": shared,
        "own": unit(rng.standard_normal(config.width)),
    }
    step = np.sum([np.sqrt(share) * parts[name] for name, share in STEP_SHARES.items()], axis=0)
    return np.asarray(step * config.separation / mahalanobis(step, wide, wide_sd))


def unit(vector: Floats) -> Floats:
    """The vector scaled to length 1."""
    return np.asarray(vector / np.sqrt(np.square(vector).sum()))


def orthonormal_rows(rng: np.random.Generator, count: int, width: int) -> Floats:
    """count x width random orthonormal rows, by Gram and Schmidt.

    A QR decomposition would do the same, but its signs differ between LAPACK builds.
    """
    rows = rng.standard_normal((count, width))
    for index in range(count):
        for earlier in rows[:index]:
            rows[index] -= (rows[index] * earlier).sum() * earlier
        rows[index] = unit(rows[index])
    return rows
