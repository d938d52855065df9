"""Telling whether two feature files hold the same tiles, whatever their names, layouts and number types."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.cohort.opened import OpenFeatures, open_features
from asmil.cohort.source import FeatureSource
from asmil.cohort.stored import source_state

SAMPLED_ROWS = 8
ROWS_AT_ONCE = 4096
# more than a cohort has slides: a second look at all of them would find none of the first otherwise
KEPT = 1_000_000


def fingerprint(source: FeatureSource) -> str:
    """A cheap hash: the shape and a few rows, spread over the slide. Equal files have equal fingerprints."""
    return _fingerprint(source, source_state(source.path))


@lru_cache(maxsize=KEPT)
def _fingerprint(source: FeatureSource, state: tuple[int, int]) -> str:
    """Kept as long as the file is the same, since several checks of one run ask for it."""
    with open_features(source, mmap=True) as file:
        digest = _started(file)
        if file.info.n_tiles:
            digest.update(_half_bytes(file.features(_sampled_rows(file.info.n_tiles))))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _sampled_rows(n_tiles: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, n_tiles - 1, SAMPLED_ROWS).astype(np.int64))


def content_hash(source: FeatureSource) -> str:
    """The SHA-256 of all feature values, to confirm that equal fingerprints mean equal content."""
    with open_features(source, mmap=True) as file:
        digest = _started(file)
        for start in range(0, file.info.n_tiles, ROWS_AT_ONCE):
            digest.update(_half_bytes(file.features(slice(start, start + ROWS_AT_ONCE))))
    return digest.hexdigest()


def _started(file: OpenFeatures) -> hashlib._Hash:
    return hashlib.sha256(f"{file.info.n_tiles}x{file.info.width}".encode())


def _half_bytes(rows: Tensor) -> bytes:
    # float16, so that a file and its half-precision copy are seen as the same slide
    return rows.to(torch.float16).numpy().tobytes()
