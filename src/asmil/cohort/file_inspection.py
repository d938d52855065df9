"""Read the feature file of one slide, in a process that starts for this: nothing here may import torch or pandas."""

from __future__ import annotations

from dataclasses import dataclass, replace

from asmil.cohort.fingerprint import fingerprint_of
from asmil.cohort.open_features import as_array, info_of
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureInfo, FeatureSource
from asmil.cohort.tile_hashes import ROWS_AT_ONCE, TilesRead, read_tiles, tiles_read


@dataclass(frozen=True)
class Inspected:
    """The header of a feature file, and what was computed while it was open."""

    info: FeatureInfo
    fingerprint: str
    tiles: TilesRead | None = None


def inspect_file(deep: bool, tiles: bool, slide: tuple[FeatureSource, str, float | None]) -> Inspected:
    """The feature file of a slide: its source, name and mpp; see `inspect_slides`."""
    source, name, mpp = slide
    with open_features(source, mmap=True) as file:
        read = read_tiles(file) if tiles and not deep else None
        inspected = Inspected(info_of(file), fingerprint_of(file), read)
    if not deep and inspected.info.n_tiles:
        return inspected
    from asmil.cohort.features import read_bag

    bag = read_bag(source, name, mpp, verify=True)
    return replace(inspected, tiles=tiles_read(map(as_array, bag.features.split(ROWS_AT_ONCE))))
