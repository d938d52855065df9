"""The index of a pack: which slides are complete, where they are stored, their headers and their sources.

`index.json`, version 2: `dtype` of the features, `extractions` (distinct extraction settings, as JSON text),
`slides`, and `crc32` of these three. Offsets count values, not bytes. While slides are added, they are recorded
in `index.journal`, one line for several slides, so that the cost of adding slides does not depend on their number.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from asmil.cohort.pack.files import (
    COORD_BYTES,
    COORDS,
    FEATURE_BYTES,
    FEATURE_FILES,
    INDEX,
    JOURNAL,
    LOWRES_FILE,
    OWN_FILES,
    PackDtype,
)
from asmil.cohort.problems import fail
from asmil.cohort.source import CoordsUnit, FeatureInfo, FeatureSource, Layout, Provenance
from asmil.errors import AsmilError
from asmil.files import write_text

PACK_VERSION = 2

Count = Annotated[int, Field(ge=0)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The location of a slide in the pack, its header, and the state of its source when it was packed.

    lowres_shape: shape of its low-magnification tiles, N x p x p x 3, if it has any
    mpp: value from the manifest, used to convert coordinates in microns to pixels
    crc32: of the stored features, coordinates and low-magnification tiles; None in packs of earlier versions
    """

    slide: str
    offset: Count
    n: Count
    width: Count
    coords_offset: Count
    coords_unit: CoordsUnit | None
    lowres_offset: Count
    lowres_shape: Annotated[tuple[Count, ...], Field(min_length=4, max_length=4)] | None
    source: str
    source_size: int
    source_mtime_ns: int
    mpp: Size | None
    layout: Layout
    magnification: Size | None
    provenance: Provenance
    crc32: Count | None = None


@dataclass(frozen=True)
class PackIndex:
    """The content of `index.json`."""

    dtype: PackDtype
    entries: dict[str, Entry]

    @property
    def unused_share(self) -> float:
        """The share of the feature file that belongs to no slide, because slides were packed again."""
        used = sum(entry.n * entry.width for entry in self.entries.values()) * FEATURE_BYTES[self.dtype]
        return 1 - used / self.data_sizes[FEATURE_FILES[self.dtype]] if used else 0.0

    @property
    def data_sizes(self) -> dict[str, int]:
        """The bytes of each data file up to the end of its last slide."""
        ends = zip((0, 0, 0), *(_ends(entry, self.dtype) for entry in self.entries.values()), strict=True)
        return dict(zip((FEATURE_FILES[self.dtype], COORDS, LOWRES_FILE), map(max, ends), strict=True))


def write_index(folder: Path, index: PackIndex) -> None:
    """Replace the index, and remove the journal, which it now includes; the listed data must be on disk."""
    extractions, slides = _as_json(index.entries.values())
    head = {"version": PACK_VERSION, "dtype": index.dtype, "extractions": extractions}
    head["crc32"] = _checksum(index.dtype, extractions, slides)
    lines = ",\n".join(map(json.dumps, slides))
    write_text(folder / INDEX, f'{json.dumps(head)[:-1]}, "slides": [\n{lines}\n]}}\n')
    (folder / JOURNAL).unlink(missing_ok=True)


def journal_line(dtype: PackDtype, entries: Sequence[Entry]) -> bytes:
    """The journal line for added slides."""
    extractions, slides = _as_json(entries)
    noted = json.dumps({"dtype": dtype, "extractions": extractions, "slides": slides}).encode()
    return b"%08x %b\n" % (zlib.crc32(noted), noted)


def read_index(folder: Path) -> PackIndex | None:
    """The index including its journal; None if there is none, or if it has version 1, which must be rebuilt."""
    try:
        known = _stored_index(folder)
        if known is None:
            return None
        parts = [known, *_journal(folder)] if known else list(_journal(folder))
        entries = [_from_json(slide, part["extractions"]) for part in parts for slide in part["slides"]]
        if not parts:
            return None
        dtype = parts[0]["dtype"]
        FEATURE_FILES[dtype]
    except AsmilError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, IsADirectoryError) as error:
        reason = f" ({error.errors()[0]['loc'][0]})" if isinstance(error, ValidationError) else ""
        what = f"the index of the pack is damaged{reason}"
        fail(folder / INDEX, what, "copy the pack again, or delete it and pack again")
    return PackIndex(dtype, {entry.slide: entry for entry in entries})


def whole(folder: Path, index: PackIndex) -> PackIndex:
    """The part of an index whose data exists: everything, unless a file was truncated."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name in OWN_FILES}

    stored = [sizes.get(name, 0) for name in (FEATURE_FILES[index.dtype], COORDS, LOWRES_FILE)]

    def is_there(entry: Entry) -> bool:
        return all(size >= end for size, end in zip(stored, _ends(entry, index.dtype), strict=True))

    return PackIndex(index.dtype, {name: entry for name, entry in index.entries.items() if is_there(entry)})


def info_of(folder: Path, dtype: PackDtype, entry: Entry) -> FeatureInfo:
    """The header of a slide's feature file, except for the dtype, which is that of the pack."""
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


def _ends(entry: Entry, dtype: PackDtype) -> tuple[int, int, int]:
    """Where the features, coordinates and low-magnification tiles of a slide end in their files, in bytes."""
    coords = entry.coords_offset + 2 * entry.n if entry.coords_unit else 0
    lowres = entry.lowres_offset + math.prod(entry.lowres_shape) if entry.lowres_shape else 0
    return FEATURE_BYTES[dtype] * (entry.offset + entry.n * entry.width), COORD_BYTES * coords, lowres


def _stored_index(folder: Path) -> dict[str, Any] | None:
    """The content of the index file: empty if there is no such file, None if it must be rebuilt."""
    try:
        known: dict[str, Any] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if known["version"] < PACK_VERSION:
        return None
    if known["version"] > PACK_VERSION:
        fail(folder, f"pack version {known['version']} is too new for this version of asmil", "update asmil")
    if known.get("crc32") not in (None, _checksum(known["dtype"], known["extractions"], known["slides"])):
        raise ValueError("the checksum of the index differs")
    return known


def _journal(folder: Path) -> Iterator[dict[str, Any]]:
    """The journal since the index was written, up to the last complete line; a killed writer may leave half a line."""
    path = folder / JOURNAL
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        checksum, _, noted = line.partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(noted[:-1]):
            return
        yield json.loads(noted)


def _checksum(dtype: str, extractions: Sequence[str], slides: Sequence[Mapping[str, Any]]) -> int:
    return zlib.crc32("\n".join(map(json.dumps, (dtype, extractions, *slides))).encode())


def _as_json(entries: Iterable[Entry]) -> tuple[list[str], list[dict[str, Any]]]:
    """Distinct settings of the extraction, the same in most slides, and the slides with their numbers."""
    extractions: dict[str, int] = {}
    slides = []
    for entry in entries:
        # not asdict, which copies every value and would dominate the cost of recording a slide
        known = dict(vars(entry))
        header = dict(vars(known.pop("provenance")))
        if (text := header["extraction"]) is not None:
            header["extraction"] = extractions.setdefault(text, len(extractions))
        slides.append(known | {"header": {name: value for name, value in header.items() if value is not None}})
    return list(extractions), slides


def _from_json(known: Mapping[str, Any], extractions: Sequence[str]) -> Entry:
    header = dict(known["header"])
    if "extraction" in header:
        header["extraction"] = extractions[header["extraction"]]
    return _ENTRY.validate_python({**known, "provenance": header})


_ENTRY = TypeAdapter(Entry)
