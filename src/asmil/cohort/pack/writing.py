"""Write a pack: slides are appended, and listed in the journal of the index only after their data is on disk.

At the end the index is rewritten and the journal removed. Every slide listed in either is complete, so a killed writer
resumes after the last one. A slide that is packed again is appended, and its old location stays unused: packed data is
never moved, since readers may have mapped it and its source may no longer exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asmil.cohort.bag import COORDS_UM, Bag
from asmil.cohort.features import read_bag_and_info
from asmil.cohort.manifest import Slide
from asmil.cohort.pack.files import COORDS, FEATURE_FILES, JOURNAL, LOCK, LOWRES_FILE, OWN_FILES, PackDtype
from asmil.cohort.pack.index import Entry, PackIndex, journal_line, read_index, whole, write_index
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import (
    LOWRES,
    LOWRES_TILES,
    CoordsUnit,
    FeatureInfo,
    FeatureSource,
    Provenance,
    checksum_of,
    source_state,
)
from asmil.files import is_disk_full
from asmil.machine.locks import locked
from asmil.settings.made_from import Content, DoneBefore, MadeFrom, Record, StoredContent
from asmil.version import __version__

SLIDES_PER_JOURNAL_LINE = 32


class PackWriter:
    """A pack to which slides are added; created by `writing`.

    cut: slides listed in the index whose data no longer exists
    """

    def __init__(self, folder: Path, index: PackIndex, cut: Sequence[str], files: ExitStack) -> None:
        self.folder = folder
        self.index = index
        self.cut = tuple(cut)
        self._files = files
        self._open: dict[str, FileIO] = {}
        self._sizes = index.data_sizes
        self._unsaved: list[Entry] = []
        self._journal_size = 0

    def missing(self, slides: Sequence[Slide]) -> list[Slide]:
        """The slides that are not in the pack, or whose sources have changed."""
        entries = self.index.entries
        return [slide for slide in slides if slide.slide not in entries or not _matches(entries[slide.slide], slide)]

    def keeps(self, slide: Slide, done: DoneBefore) -> bool:
        """Whether a slide that is in the pack stays: its source is unchanged, or has the same content elsewhere."""
        entry = self.index.entries[slide.slide]
        if _matches(entry, slide):
            return True
        packed = None
        if entry.crc32 is not None:
            contents = {"features": StoredContent(checksum=str(entry.crc32))}
            # a pack is a copy: the version that made it does not matter
            packed = Record(asmil=__version__, values={"mpp": entry.mpp}, contents=contents)
        now = Content(lambda: str(self._checksum(slide)))
        return done.keeps(slide.slide, packed, MadeFrom({"mpp": slide.mpp}, {"features": now}))

    def moved(self, slide: Slide) -> None:
        """Note where the source of a slide is now, if it was moved or copied."""
        entry = self.index.entries[slide.slide]
        if not _matches(entry, slide):
            size, mtime_ns = source_state(slide.source)
            source = absolute(slide.source)
            self._register(replace(entry, source=source, source_size=size, source_mtime_ns=mtime_ns))

    def _checksum(self, slide: Slide) -> int:
        """The checksum that a slide would have in the pack."""
        bag, _ = read_bag_and_info(slide.source, slide.slide, slide.mpp)
        features = _stored(bag, self.index.dtype, slide.source)
        return checksum_of(features, _corners(bag)[0], _lowres_tiles(bag, slide.source))

    def add(self, slide: Slide) -> None:
        """Read a slide and append it; an unusable slide leaves the pack unchanged."""
        size, mtime_ns = source_state(slide.source)
        bag, info = read_bag_and_info(slide.source, slide.slide, slide.mpp, verify=True)
        features = _stored(bag, self.index.dtype, slide.source)
        corners, unit = _corners(bag)
        tiles = _lowres_tiles(bag, slide.source)
        offsets = self._append(features, corners, tiles)
        entry = Entry(
            slide=slide.slide,
            offset=offsets[0],
            n=len(bag),
            width=bag.width,
            coords_offset=offsets[1],
            coords_unit=unit,
            lowres_offset=offsets[2],
            lowres_shape=None if tiles is None else tiles.shape,
            source=absolute(slide.source),
            source_size=size,
            source_mtime_ns=mtime_ns,
            mpp=slide.mpp,
            layout=info.layout,
            magnification=info.magnification,
            provenance=_provenance(info, slide),
            crc32=checksum_of(features, corners, tiles),
        )
        self._register(entry)
        if len(self._unsaved) == SLIDES_PER_JOURNAL_LINE:
            self._note()

    def _register(self, entry: Entry) -> None:
        self.index.entries[entry.slide] = entry
        self._unsaved.append(entry)

    def close(self) -> None:
        """Flush the added data to disk, then write the index."""
        if self._unsaved or self._journal_size:
            self._settle()
            write_index(self.folder, self.index)

    def _note(self) -> None:
        """Add a journal line for the slides since the last one; a partial line from a full disk is overwritten."""
        self._settle()
        file = self._opened(JOURNAL)
        _write_at(file, self._journal_size, journal_line(self.index.dtype, self._unsaved))
        os.fsync(file.fileno())
        self._journal_size = file.tell()
        self._unsaved.clear()

    def _settle(self) -> None:
        """Flush the data to disk; an incomplete slide at the end is truncated."""
        for name, size in self._sizes.items():
            if name in self._open:
                self._open[name].truncate(size)
                os.fsync(self._open[name].fileno())

    def _append(self, *parts: NDArray[Any] | None) -> list[int]:
        """Append features, corners and low-magnification tiles; return their offsets in their files, in values."""
        ends, offsets = dict(self._sizes), []
        for name, values in zip((FEATURE_FILES[self.index.dtype], COORDS, LOWRES_FILE), parts, strict=True):
            offsets.append(self._sizes[name] // (1 if values is None else values.itemsize))
            file = self._opened(name)
            if values is not None:
                _write_at(file, self._sizes[name], memoryview(np.ascontiguousarray(values).data).cast("B"))
                ends[name] = file.tell()
        self._sizes = ends
        return offsets

    def _opened(self, name: str) -> FileIO:
        """Open a file unbuffered, so that a write that failed on a full disk is not repeated on closing."""
        if name not in self._open:
            path = self.folder / name
            path.touch()
            file = self._files.enter_context(path.open("r+b", buffering=0))
            file.truncate(self._sizes.get(name, 0))
            self._open[name] = file
        return self._open[name]


def _write_at(file: FileIO, start: int, values: bytes | memoryview) -> None:
    file.seek(start)
    rest = memoryview(values)
    while rest:
        rest = rest[file.write(rest) or 0 :]
    file.truncate()


@contextmanager
def writing(folder: Path, dtype: PackDtype | None = None) -> Iterator[PackWriter]:
    """Open a pack to add slides, or create one; one writer at a time.

    dtype: type of the features; default: that of the pack, float16 for a new pack
    """
    _refuse_foreign(folder)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # the lock is released when the process ends, even if it is killed
        with locked(folder / LOCK), ExitStack() as files:
            writer = _begun(folder, dtype, files)
            try:
                yield writer
            finally:
                writer.close()
                is_new = is_new and not writer.index.entries
    except OSError as error:
        if not is_disk_full(error):
            raise
        what = "the disk is full (or a limit on file sizes is reached)"
        fail(folder, what, "free some space and run the same command again to resume")
    finally:
        if is_new:
            _remove_empty(folder)


def absolute(source: FeatureSource) -> str:
    """A source with an absolute path, as stored in the index."""
    return str(source.moved(Path.resolve))


def is_stale(entry: Entry) -> bool:
    """Whether the source of a slide has been changed or removed since it was packed."""
    source = FeatureSource.parse(entry.source)
    is_there = all(path.exists() for path in source.paths)
    return not is_there or source_state(source) != (entry.source_size, entry.source_mtime_ns)


def _matches(entry: Entry, slide: Slide) -> bool:
    return entry.source == absolute(slide.source) and entry.mpp == slide.mpp and not is_stale(entry)


def _begun(folder: Path, dtype: PackDtype | None, files: ExitStack) -> PackWriter:
    index = read_index(folder)
    if index is None:
        # remove instead of truncating: a process that has mapped the old files keeps them
        for name in OWN_FILES - {LOCK}:
            (folder / name).unlink(missing_ok=True)
        return PackWriter(folder, PackIndex(dtype or "float16", {}), (), files)
    if dtype not in (None, index.dtype):
        todo = "give another folder, or use the type of this pack"
        fail(folder, f"the pack contains {index.dtype}, not {dtype}", todo)
    kept = whole(folder, index)
    if kept != index or (folder / JOURNAL).exists():
        write_index(folder, kept)
    return PackWriter(folder, kept, [name for name in index.entries if name not in kept.entries], files)


def _stored(bag: Bag, dtype: PackDtype, source: FeatureSource) -> NDArray[Any]:
    values = bag.features.to(getattr(torch, dtype))
    if values.dtype != bag.features.dtype and not bool(torch.isfinite(values).all()):
        what = f"features up to {float(bag.features.abs().max()):g} are beyond the range of {dtype} ({source})"
        todo = "use a cache other than disk, or `asmil pack --dtype float32` into a new folder"
        fail(f"slide '{bag.id}'", what, todo)
    return values.numpy()


def _corners(bag: Bag) -> tuple[NDArray[Any] | None, CoordsUnit | None]:
    if bag.coords is not None:
        return bag.coords.numpy().astype(np.int64, copy=False), "px"
    if COORDS_UM in bag.extras:
        # microns are float64: their bits are stored in the same file, and the unit defines how to read them
        return bag.extras[COORDS_UM].numpy().view(np.int64), "um"
    return None, None


def _lowres_tiles(bag: Bag, source: FeatureSource) -> NDArray[np.uint8] | None:
    tiles = bag.extras.get(LOWRES, {}).get(LOWRES_TILES)
    if tiles is None:
        return None
    if tiles.dtype != torch.uint8 or tiles.ndim != 4 or len(tiles) != len(bag):
        what = f"lowres/tiles of {source} is {str(tiles.dtype).removeprefix('torch.')} of shape {tuple(tiles.shape)}"
        fail(f"slide '{bag.id}'", what, f"it must be uint8 of {len(bag)} x p x p x 3; write it again or remove it")
    values: NDArray[np.uint8] = tiles.numpy()
    return values


def _provenance(info: FeatureInfo, slide: Slide) -> Provenance:
    """The provenance in the header, with the manifest's resolution if the header has none."""
    known = Provenance(**{name: getattr(info, name) for name in Provenance.__dataclass_fields__})
    if known.mpp is None and slide.mpp is not None:
        return replace(known, mpp=slide.mpp, mpp_source="manifest")
    return known


def _refuse_foreign(folder: Path) -> None:
    todo = "give a new folder for the pack"
    if folder.is_file():
        fail(folder, "this is a file", todo)
    names = {path.name for path in folder.glob("*") if path.suffix != ".partial"}
    if others := sorted(names - OWN_FILES):
        fail(folder, f"the folder contains other files ({listed(others)})", todo)


def _remove_empty(folder: Path) -> None:
    """Remove the folder of a new pack to which nothing was written."""
    if folder.is_dir() and {path.name for path in folder.iterdir()} <= OWN_FILES:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
