"""The index of a pack: which slides are whole in it, where they lie, and what their sources were."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from asmil.cohort.manifest import Slide
from asmil.cohort.opened import source_state
from asmil.cohort.source import CoordsUnit, FeatureSource
from asmil.files import write_json

PACK_VERSION = 1
INDEX, FEATURES, COORDS = "index.json", "features.f16", "coords.i64"
FEATURE_BYTES, COORD_BYTES = 2, 8


@dataclass(frozen=True)
class Entry:
    """Where a slide lies in the pack, in values, and what its source was when it was packed."""

    slide: str
    offset: int
    n: int
    width: int
    coords_offset: int
    coords_unit: CoordsUnit | None
    source: str
    source_size: int
    source_mtime_ns: int
    mpp: float | None

    def is_stale(self) -> bool:
        """Whether the source was changed or removed since."""
        path = FeatureSource.parse(self.source).path
        return not path.is_file() or source_state(path) != (self.source_size, self.source_mtime_ns)

    def matches(self, slide: Slide) -> bool:
        """Whether this is the slide as the manifest describes it."""
        return self.source == absolute(slide.source) and self.mpp == slide.mpp and not self.is_stale()


def write_index(folder: Path, entries: dict[str, Entry], *written: BinaryIO) -> None:
    """Replace the index, after the data it speaks of is on disk."""
    for file in written:
        file.flush()
        os.fsync(file.fileno())
    slides = [asdict(entry) for entry in entries.values()]
    write_json(folder / INDEX, {"version": PACK_VERSION, "slides": slides})


def read_index(folder: Path) -> dict[str, Entry]:
    """The slides that are whole; none if there is no index or the data is shorter than it says."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["version"] != PACK_VERSION:
            return {}
        entries = {slide["slide"]: Entry(**slide) for slide in index["slides"]}
        sizes = [(folder / name).stat().st_size for name in (FEATURES, COORDS)]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
    ends = data_end(entries)
    return entries if sizes[0] >= FEATURE_BYTES * ends[0] and sizes[1] >= COORD_BYTES * ends[1] else {}


def data_end(entries: dict[str, Entry]) -> tuple[int, int]:
    """Where the data of all slides ends, in values of the two files."""
    features = max((entry.offset + entry.n * entry.width for entry in entries.values()), default=0)
    with_coords = (entry for entry in entries.values() if entry.coords_unit)
    return features, max((entry.coords_offset + 2 * entry.n for entry in with_coords), default=0)


def absolute(source: FeatureSource) -> str:
    """A source as it is noted in the index: the same from any working folder."""
    return str(FeatureSource(source.path.resolve(), source.group))
