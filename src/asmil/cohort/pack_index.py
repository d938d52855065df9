"""The index of a pack: which slides are whole in it, where they lie, what their headers said, what their sources were.

`index.json`, version 2: `dtype` of the features, `extractions` (distinct settings of extractions, as JSON text) and
`slides`. Offsets count values, not bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from asmil.cohort.problems import fail
from asmil.cohort.source import CoordsUnit, FeatureInfo, FeatureSource, Layout, Provenance
from asmil.errors import AsmilError
from asmil.files import write_json

PackDtype = Literal["float16", "float32"]
PACK_VERSION = 2
INDEX, COORDS, LOWRES_FILE, LOCK = "index.json", "coords.i64", "lowres.u8", "lock"
FEATURE_FILES: dict[PackDtype, str] = {"float16": "features.f16", "float32": "features.f32"}
FEATURE_BYTES: dict[PackDtype, int] = {"float16": 2, "float32": 4}
COORD_BYTES = 8
OWN_FILES = frozenset((INDEX, COORDS, LOWRES_FILE, LOCK, *FEATURE_FILES.values()))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where a slide lies in the pack, what its header said, and what its source was when it was packed.

    lowres_shape: of its low-magnification tiles, N x p x p x 3, if it has any
    mpp: what the manifest gave, by which coordinates in microns became pixels
    """

    slide: str
    offset: int
    n: int
    width: int
    coords_offset: int
    coords_unit: CoordsUnit | None
    lowres_offset: int
    lowres_shape: tuple[int, ...] | None
    source: str
    source_size: int
    source_mtime_ns: int
    mpp: float | None
    layout: Layout
    magnification: float | None
    provenance: Provenance


@dataclass(frozen=True)
class Ends:
    """Where the data of some slides ends, in values of the three files."""

    features: int
    coords: int
    lowres: int

    def n_bytes(self, dtype: PackDtype) -> dict[str, int]:
        """The size of each file."""
        return {
            FEATURE_FILES[dtype]: FEATURE_BYTES[dtype] * self.features,
            COORDS: COORD_BYTES * self.coords,
            LOWRES_FILE: self.lowres,
        }


@dataclass(frozen=True)
class PackIndex:
    """What `index.json` says."""

    dtype: PackDtype
    entries: dict[str, Entry]

    @property
    def unused_share(self) -> float:
        """The share of the features' file that belongs to no slide, since slides were packed anew."""
        used = sum(entry.n * entry.width for entry in self.entries.values())
        return 1 - used / self.ends.features if used else 0.0

    @property
    def ends(self) -> Ends:
        """Where the data of all slides ends."""
        return Ends(*map(max, zip((0, 0, 0), *map(_ends, self.entries.values()), strict=True)))


def is_pack(path: Path) -> bool:
    """Whether a folder is a pack, finished or not: it has the data files of one."""
    # asked of every slide: without the path objects of pathlib, which take longer than the disk
    folder = os.fspath(path)
    return os.path.isdir(folder) and any(
        os.path.isfile(f"{folder}/{name}") for name in (*FEATURE_FILES.values(), COORDS)
    )


def write_index(folder: Path, index: PackIndex) -> None:
    """Replace the index; the data it speaks of must be on disk."""
    extractions: dict[str, int] = {}
    slides = [_as_json(entry, extractions) for entry in index.entries.values()]
    known = {"version": PACK_VERSION, "dtype": index.dtype, "extractions": list(extractions), "slides": slides}
    write_json(folder / INDEX, known)


def read_index(folder: Path) -> PackIndex | None:
    """What the index says; None if there is none, or one of version 1, which was a cache and is made again."""
    try:
        known = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if known["version"] < PACK_VERSION:
            return None
        if known["version"] > PACK_VERSION:
            fail(folder, f"pack version {known['version']} is newer than this asmil reads", "update asmil")
        entries = [_from_json(slide, known["extractions"]) for slide in known["slides"]]
        FEATURE_FILES[known["dtype"]]
    except FileNotFoundError:
        return None
    except AsmilError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        fail(folder / INDEX, "the index of the pack is damaged", "copy the pack again, or delete it and pack again")
    return PackIndex(known["dtype"], {entry.slide: entry for entry in entries})


def whole(folder: Path, index: PackIndex) -> PackIndex:
    """The part of an index whose data is there: all of it, unless a file was cut."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name in OWN_FILES}

    def is_there(entry: Entry) -> bool:
        needed = Ends(*_ends(entry)).n_bytes(index.dtype)
        return all(sizes.get(name, 0) >= size for name, size in needed.items())

    return PackIndex(index.dtype, {name: entry for name, entry in index.entries.items() if is_there(entry)})


def info_of(folder: Path, dtype: PackDtype, entry: Entry) -> FeatureInfo:
    """What the header of a slide's feature file said, but for the type in which the pack holds its values."""
    return FeatureInfo(
        **vars(entry.provenance),
        source=FeatureSource(folder, entry.slide),
        layout=entry.layout,
        n_tiles=entry.n,
        width=entry.width,
        dtype=dtype,
        n_bytes=entry.n * entry.width * FEATURE_BYTES[dtype],
        coords_unit=entry.coords_unit,
        magnification=entry.magnification,
    )


def _ends(entry: Entry) -> tuple[int, int, int]:
    coords = entry.coords_offset + 2 * entry.n if entry.coords_unit else 0
    lowres = entry.lowres_offset + math.prod(entry.lowres_shape) if entry.lowres_shape else 0
    return entry.offset + entry.n * entry.width, coords, lowres


def _as_json(entry: Entry, extractions: dict[str, int]) -> dict[str, Any]:
    """Settings of the extraction, the same in most slides, are replaced by their number."""
    known = asdict(entry)
    header = known.pop("provenance")
    if (text := header["extraction"]) is not None:
        header["extraction"] = extractions.setdefault(text, len(extractions))
    return known | {"header": {name: value for name, value in header.items() if value is not None}}


def _from_json(known: Mapping[str, Any], extractions: list[str]) -> Entry:
    header = dict(known["header"])
    if "extraction" in header:
        header["extraction"] = extractions[header["extraction"]]
    shape = known["lowres_shape"] and tuple(known["lowres_shape"])
    changed: dict[str, Any] = {"provenance": Provenance(**header), "lowres_shape": shape}
    return Entry(**{field.name: known[field.name] for field in fields(Entry) if field.name not in changed}, **changed)
