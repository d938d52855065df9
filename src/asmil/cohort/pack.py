"""A whole cohort in one raw float16 file, mapped into memory: bags are read at the speed of the disk.

A pack is a folder: `features.f16`, `coords.i64` and `index.json`. The index is replaced only after the data
it speaks of is on disk, so whatever it lists is whole; a killed writer goes on after the last slide listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from asmil.cohort.bag import Bag
from asmil.cohort.features import read_bag
from asmil.cohort.manifest import Slide
from asmil.cohort.opened import source_state
from asmil.cohort.pack_index import (
    COORD_BYTES,
    COORDS,
    FEATURE_BYTES,
    FEATURES,
    INDEX,
    Entry,
    absolute,
    data_end,
    read_index,
    write_index,
)
from asmil.cohort.problems import fail
from asmil.cohort.source import CoordsUnit
from asmil.errors import did_you_mean
from asmil.files import is_disk_full

try:
    import fcntl
except ImportError:  # Windows has no such lock; two writers of one pack are then the user's to avoid
    fcntl = None  # type: ignore[assignment]

SLIDES_AN_INDEX = 32
Progress = Callable[[int, int], None]


class Pack:
    """A pack, opened for reading."""

    def __init__(self, folder: Path, entries: dict[str, Entry]) -> None:
        self.folder = folder
        self.entries = entries
        self._features = _mapped(folder / FEATURES, np.float16, data_end(entries)[0])
        self._coords = _mapped(folder / COORDS, np.int64, data_end(entries)[1])

    @classmethod
    def open(cls, folder: Path | str) -> Pack:
        """Open a pack that `write_pack` wrote."""
        folder = Path(folder)
        entries = read_index(folder)
        if not entries:
            fail(folder, "there is no finished pack in the folder", "pack the cohort (again)")
        return cls(folder, entries)

    def bag(self, slide_name: str) -> Bag:
        """The bag of a slide, without copying it; a source that changed since packing is an error."""
        entry = self.entries.get(slide_name)
        if entry is None:
            fail(
                self.folder,
                f"slide '{slide_name}' is not in the pack",
                did_you_mean(slide_name, self.entries),
            )
        if entry.is_stale():
            fail(
                entry.source,
                f"the file changed since slide '{slide_name}' was packed",
                "pack the cohort again",
            )
        values = self._features[entry.offset : entry.offset + entry.n * entry.width]
        features = torch.from_numpy(values.reshape(entry.n, entry.width))
        if entry.coords_unit is None:
            return Bag(features, id=slide_name, validated=True)
        coords = self._coords[entry.coords_offset : entry.coords_offset + 2 * entry.n].reshape(-1, 2)
        if entry.coords_unit == "px":
            return Bag(features, torch.from_numpy(coords), id=slide_name, validated=True)
        extras = {"coords_um": torch.from_numpy(coords.view(np.float64))}
        return Bag(features, id=slide_name, extras=extras, validated=True)


def write_pack(slides: Sequence[Slide], folder: Path | str, progress: Progress | None = None) -> Pack:
    """Pack the slides that are not in the pack yet; if one of them changed, the pack is made anew.

    progress: called with (slides done, slides in all)
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        entries = read_index(folder)
        if any(slide.slide in entries and not entries[slide.slide].matches(slide) for slide in slides):
            entries = {}
        if not entries:
            # removed, not emptied: a process that still has the old files mapped keeps them
            for name in (INDEX, FEATURES, COORDS):
                (folder / name).unlink(missing_ok=True)
        missing = [slide for slide in slides if slide.slide not in entries]
        try:
            _append(missing, folder, entries, progress)
        except OSError as error:
            if not is_disk_full(error):
                raise
            fail(folder, "the disk is full", "free some space and give the same command again, it goes on")
    return Pack.open(folder)


def _append(slides: Sequence[Slide], folder: Path, entries: dict[str, Entry], progress: Progress | None) -> None:
    already = len(entries)
    with _appending(folder / FEATURES) as features, _appending(folder / COORDS) as coords:
        ends = data_end(entries)
        features.truncate(FEATURE_BYTES * ends[0])
        coords.truncate(COORD_BYTES * ends[1])
        features.seek(0, os.SEEK_END)
        coords.seek(0, os.SEEK_END)
        try:
            for done, slide in enumerate(slides, start=1):
                entries[slide.slide] = _pack_slide(slide, features, coords)
                if done % SLIDES_AN_INDEX == 0:
                    write_index(folder, entries, features, coords)
                if progress is not None:
                    progress(already + done, already + len(slides))
        finally:
            if slides:
                write_index(folder, entries, features, coords)


def _pack_slide(slide: Slide, features: BinaryIO, coords: BinaryIO) -> Entry:
    size, mtime_ns = source_state(slide.source.path)
    bag = read_bag(slide.source, slide.slide, slide.mpp)
    if "lowres" in bag.extras:
        fail(f"slide '{slide.slide}'", "a pack does not hold low-resolution tiles", "use another cache")
    half = bag.features.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        largest = float(bag.features.abs().max())
        what = f"features up to {largest:g} are beyond the range of float16 ({slide.source})"
        fail(f"slide '{slide.slide}'", what, "use another cache than the disk")
    unit: CoordsUnit | None = "px" if bag.coords is not None else None
    corners = None if bag.coords is None else bag.coords.numpy()
    if "coords_um" in bag.extras:
        # microns are float64: their bits lie in the same file, the unit tells how to read them
        unit, corners = "um", bag.extras["coords_um"].numpy().view(np.int64)
    entry = Entry(
        slide.slide,
        features.tell() // FEATURE_BYTES,
        len(bag),
        bag.width,
        coords.tell() // COORD_BYTES,
        unit,
        absolute(slide.source),
        size,
        mtime_ns,
        slide.mpp,
    )
    features.write(half.contiguous().numpy().data)
    if corners is not None:
        coords.write(np.ascontiguousarray(corners, dtype=np.int64).data)
    return entry


def _mapped(path: Path, dtype: type[np.generic], length: int) -> NDArray[Any]:
    # copy-on-write: torch warns of memory it may not write to, and the file stays as it is
    return np.memmap(path, dtype, "c", shape=(length,)) if length else np.empty(0, dtype)


@contextmanager
def _appending(path: Path) -> Iterator[BinaryIO]:
    path.touch()
    with path.open("r+b") as file:
        yield file


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock falls when the process ends, however it ends."""
    with (folder / "lock").open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
