"""Recognize slides by their tiles: a permuted copy, or one with a few tiles fewer, is still the same slide.

Every tile is hashed. The sketch of a slide is its smallest distinct hashes, a random sample of its tiles that does not
depend on their order (bottom-k MinHash): two slides share about as large a part of their sketches as of their tiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.open_features import OpenFeatures, as_array, as_halves
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureSource, source_state
from asmil.tables.arrays import Floats32

if TYPE_CHECKING:
    from torch import Tensor

Hashes = NDArray[np.uint64]
KEPT = 128
"""Hashes in a sketch."""
FEWEST_SHARED, LEAST_SHARE = 4, 0.5
"""Two slides are the same if they share at least this many different tiles and this part of the smaller slide."""
BACKGROUND = 10
"""A tile that this many patients share is background: blank tiles have the same features in all slides."""
ROWS_AT_ONCE = 4096
_known: dict[tuple[FeatureSource, tuple[int, int]], TilesRead] = {}
"""Cached while a file is unchanged, as fingerprints are."""


@dataclass(frozen=True, eq=False)
class TileSketch:
    """The smallest distinct tile hashes of a slide, ascending; complete: whether these are all of them."""

    hashes: Hashes
    complete: bool


@dataclass(frozen=True, eq=False)
class TilesRead:
    """What is kept of the tiles of a slide: their sketch, and the mean of their features (D)."""

    sketch: TileSketch
    mean: Floats32


def tile_sketch(source: FeatureSource) -> TileSketch:
    """The sketch of a feature file, which is read once from beginning to end."""
    return _tiles_of(source).sketch


def slide_mean(source: FeatureSource) -> Floats32:
    """The mean of the tile features of a slide (D); a file whose sketch is known is not read again."""
    return _tiles_of(source).mean


def remember_tiles(source: FeatureSource, tiles: TilesRead) -> None:
    """Store what another process read, or what was computed from a bag in memory."""
    _known[source, source_state(source)] = tiles


def _tiles_of(source: FeatureSource) -> TilesRead:
    key = (source, source_state(source))
    if key not in _known:
        with open_features(source, mmap=True) as file:
            _known[key] = read_tiles(file)
    return _known[key]


def read_tiles(file: OpenFeatures) -> TilesRead:
    """Read all tiles of an open feature file once."""
    starts = range(0, file.info.n_tiles, ROWS_AT_ONCE)
    return tiles_read(file.array(slice(start, start + ROWS_AT_ONCE)) for start in starts)


@np.errstate(over="ignore", invalid="ignore")
def tiles_read(parts: Iterable[NDArray[Any]]) -> TilesRead:
    """What is kept of tiles (N x D) that are given in parts."""
    hashes, sums, count = [np.zeros(0, np.uint64)], np.zeros(1), 0
    for features in parts:
        hashes.append(_hashes_of(features))
        sums = sums + features.sum(axis=0, dtype=np.float64)
        count += len(features)
    return TilesRead(sketch_of(np.concatenate(hashes)), (sums / max(count, 1)).astype(np.float32))


def tile_hashes(features: Tensor) -> Hashes:
    """N hashes of N tiles (N x D).

    Values are rounded to float16 first, so that a slide and its half-precision copy have the same hashes.
    """
    # in parts, since a whole slide in another number type may not fit into memory
    return _joined(_hashes_of(as_array(part)) for part in features.split(ROWS_AT_ONCE))


def _joined(parts: Iterable[Hashes]) -> Hashes:
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _hashes_of(features: NDArray[Any]) -> Hashes:
    halves = as_halves(features)
    padding = -halves.shape[1] % 4
    if padding:
        halves = np.pad(halves, ((0, 0), (0, padding)))
    words = np.ascontiguousarray(halves).view(np.uint64)
    return _mixed(np.einsum("nw,w->n", words, _factors(words.shape[1])))


@cache
def _factors(count: int) -> Hashes:
    # odd, so that no bit of a word is lost; the raw output of a bit generator never changes
    return np.random.PCG64(20260101).random_raw(count).astype(np.uint64) | np.uint64(1)


def _mixed(values: Hashes) -> Hashes:
    """The finalizer of MurmurHash3: every bit of the input changes half of the output."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return np.asarray(values ^ (values >> np.uint64(33)), dtype=np.uint64)


def sketch_of(hashes: Hashes) -> TileSketch:
    """The sketch of a slide from the hashes of its tiles."""
    distinct = np.unique(hashes)
    return TileSketch(distinct[:KEPT].copy(), len(distinct) <= KEPT)


def are_one_slide(a: TileSketch, b: TileSketch, ignored: Hashes | None = None) -> bool:
    """Whether two sketches are of one slide: they share half of the tiles of the smaller one, or all if there are few.

    ignored: hashes of background tiles, which do not count
    """
    # above the end of an incomplete sketch nothing is known of its slide
    ends = [sketch.hashes[-1] for sketch in (a, b) if not sketch.complete]
    end = min(ends, default=np.uint64(2**64 - 1))
    first, second = (sketch.hashes[sketch.hashes <= end] for sketch in (a, b))
    if ignored is not None:
        first, second = (sketch[~np.isin(sketch, ignored, assume_unique=True)] for sketch in (first, second))
    shared = len(np.intersect1d(first, second, assume_unique=True))
    if len(first) < FEWEST_SHARED or len(second) < FEWEST_SHARED:
        return 0 < shared == len(first) == len(second)
    return shared >= FEWEST_SHARED and shared >= LEAST_SHARE * min(len(first), len(second))


def copies(sketches: Sequence[TileSketch], patients: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Every pair of slides that are one slide, by their indices; patients: the patient of each slide."""
    holders = _holders(sketches)
    background = _background(holders, patients)
    ignored = np.array(sorted(background), dtype=np.uint64)
    pairs = {pair for value, indices in holders.items() if value not in background for pair in combinations(indices, 2)}
    for i, j in sorted(pairs):
        if are_one_slide(sketches[i], sketches[j], ignored):
            yield i, j


def without_background(sketches: Sequence[TileSketch], patients: Sequence[Hashable]) -> list[TileSketch]:
    """The sketches without the tiles that many patients share."""
    ignored = np.array(sorted(_background(_holders(sketches), patients)), dtype=np.uint64)
    return [
        TileSketch(sketch.hashes[~np.isin(sketch.hashes, ignored, assume_unique=True)], sketch.complete)
        for sketch in sketches
    ]


def _holders(sketches: Sequence[TileSketch]) -> dict[int, list[int]]:
    """The indices of the sketches that contain a hash, for every hash in several sketches."""
    values = np.concatenate([np.zeros(0, np.uint64), *(sketch.hashes for sketch in sketches)])
    indices = np.repeat(np.arange(len(sketches)), [len(sketch.hashes) for sketch in sketches])
    order = np.argsort(values, kind="stable")
    values, indices = values[order], indices[order]
    shared = np.zeros(len(values), dtype=np.bool_)
    shared[1:] = values[1:] == values[:-1]
    shared[:-1] |= shared[1:]
    holders: dict[int, list[int]] = defaultdict(list)
    for value, index in zip(values[shared].tolist(), indices[shared].tolist(), strict=True):
        holders[value].append(index)
    return holders


def _background(holders: Mapping[int, Sequence[int]], patients: Sequence[Hashable]) -> set[int]:
    return {
        value
        for value, indices in holders.items()
        if len(indices) >= BACKGROUND and len({patients[index] for index in indices}) >= BACKGROUND
    }
