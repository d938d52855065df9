"""Detect feature files with the same tiles, whatever their names, layouts and number types, and changed ones."""

from __future__ import annotations

import hashlib

import numpy as np

from asmil.cohort.open_features import OpenFeatures, as_halves
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureSource, source_state
from asmil.settings.made_from import Content, state_of

SAMPLED_ROWS = 8
ROWS_AT_ONCE = 4096
_known: dict[tuple[FeatureSource, tuple[int, int]], str] = {}
"""Cached while a file is unchanged, since several checks of one run need it. The cache has no size limit: the checks
read all files in order, so a limited cache would never be hit."""


def fingerprint(source: FeatureSource) -> str:
    """A cheap hash of the shape and a few rows, spread over the slide. Equal files have equal fingerprints."""
    key = (source, source_state(source))
    if key not in _known:
        with open_features(source, mmap=True) as file:
            _known[key] = fingerprint_of(file)
    return _known[key]


def remember_fingerprint(source: FeatureSource, value: str) -> None:
    """Store a fingerprint that another process computed."""
    _known[source, source_state(source)] = value


def fingerprint_of(file: OpenFeatures) -> str:
    """The fingerprint of an open feature file."""
    digest = _started(file)
    if file.info.n_tiles:
        rows = np.unique(np.linspace(0, file.info.n_tiles - 1, SAMPLED_ROWS).astype(np.int64))
        digest.update(as_halves(file.array(rows)).tobytes())
    return digest.hexdigest()


def content_hash(source: FeatureSource) -> str:
    """The SHA-256 of all feature values, to confirm that equal fingerprints mean equal content."""
    with open_features(source, mmap=True) as file:
        digest = _started(file)
        for start in range(0, file.info.n_tiles, ROWS_AT_ONCE):
            digest.update(as_halves(file.array(slice(start, start + ROWS_AT_ONCE))).tobytes())
    return digest.hexdigest()


def feature_contents(source: FeatureSource) -> dict[str, Content]:
    """What results of a slide are made from: its features, and the positions and size of its tiles."""
    source_state(source)  # raises if the file is missing
    state = state_of(*source.paths)
    return {
        "features": Content(lambda: content_hash(source), *state),
        "coordinates": Content(lambda: _coords_hash(source), *state),
    }


def _coords_hash(source: FeatureSource) -> str:
    with open_features(source, mmap=True) as file:
        coords = file.read_coords()
        digest = hashlib.sha256(f"{file.info.coords_unit} {file.info.tile_side_level0()} {file.info.mpp}".encode())
    if coords is not None:
        digest.update(np.ascontiguousarray(coords, np.float64).tobytes())
    return digest.hexdigest()


def _started(file: OpenFeatures) -> hashlib._Hash:
    return hashlib.sha256(f"{file.info.n_tiles}x{file.info.width}".encode())
