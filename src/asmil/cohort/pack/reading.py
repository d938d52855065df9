"""Read a pack: its data files are mapped into memory once, and bags are views of them."""

from __future__ import annotations

import math
import mmap
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.pack.files import COORDS, FEATURE_FILES, INDEX, JOURNAL, LOWRES_FILE, file_states
from asmil.cohort.pack.index import Entry, PackIndex, read_index
from asmil.cohort.problems import fail
from asmil.cohort.source import checksum_of
from asmil.errors import did_you_mean

KEPT_OPEN = 16
# without this flag Linux rejects private mappings larger than memory; Python before 3.13 has no name for it
MAP_NORESERVE = 0x4000


class Pack:
    """A pack, opened for reading. Mapped data stays valid even if the files are replaced.

    Arrays are views of mapped memory: writing to one never changes the file, but is visible in the whole process.
    """

    def __init__(self, folder: Path, index: PackIndex) -> None:
        self.folder = folder
        self.dtype = index.dtype
        self.entries = index.entries
        self.unused_share = index.unused_share
        self._sizes = index.data_sizes
        self._verified: set[str] = set()
        self._refuse_cut()
        self._features = _Mapped(folder / FEATURE_FILES[index.dtype], index.dtype, self._sizes)
        self._coords = _Mapped(folder / COORDS, "int64", self._sizes)
        self._lowres = _Mapped(folder / LOWRES_FILE, "uint8", self._sizes)

    @classmethod
    def open(cls, folder: Path | str) -> Pack:
        """Open a pack; an unchanged pack is opened only once per process."""
        folder = folder if isinstance(folder, Path) else Path(folder)
        # a verification is valid only while the data files are unchanged
        names = (INDEX, JOURNAL, *FEATURE_FILES.values(), COORDS, LOWRES_FILE)
        pack = _opened(folder, tuple(file_states(folder, *names)))
        pack._refuse_cut()
        return pack

    def entry(self, slide: str | None) -> Entry:
        if slide in self.entries:
            return self.entries[slide]
        if slide is None:
            first = next(iter(self.entries))
            todo = f"choose one, e.g. {self.folder.name}::{first}, or give the pack as the features of the cohort"
            fail(self.folder, f"the pack contains {len(self.entries)} slides", todo)
        return fail(self.folder, f"slide '{slide}' is not in the pack", did_you_mean(slide, self.entries))

    def verify_once(self, entry: Entry) -> None:
        """Compare a slide with its checksum, if it has one, unless this was done before."""
        if entry.crc32 is None or entry.slide in self._verified:
            return
        if checksum_of(self.features(entry, ahead=True), self.coords(entry), self.lowres(entry)) != entry.crc32:
            what = f"the values of slide '{entry.slide}' have changed since they were packed (the checksum differs)"
            fail(self.folder, what, "copy the pack again, or delete it and pack the cohort again")
        self._verified.add(entry.slide)

    def features(self, entry: Entry, ahead: bool = False) -> NDArray[Any]:
        """Features N x D, not copied; `ahead`: start reading, since all of them will be needed."""
        return self._features.part(entry.offset, (entry.n, entry.width), ahead)

    def coords(self, entry: Entry) -> NDArray[Any] | None:
        """Coordinates N x 2: pixels as int64, microns as float64."""
        if entry.coords_unit is None:
            return None
        coords = self._coords.part(entry.coords_offset, (entry.n, 2))
        return coords.view(np.float64) if entry.coords_unit == "um" else coords

    def lowres(self, entry: Entry, ahead: bool = False) -> NDArray[np.uint8] | None:
        """Low-magnification tiles N x p x p x 3."""
        if entry.lowres_shape is None:
            return None
        return self._lowres.part(entry.lowres_offset, entry.lowres_shape, ahead)

    def _refuse_cut(self) -> None:
        """Raise if a data file is truncated: reading mapped data beyond its end would crash the process."""
        for name, size in self._sizes.items():
            if size and sum(stored for _, stored, _ in file_states(self.folder, name)) < size:
                what = f"the pack in the folder is incomplete: {name} is shorter than the index says"
                fail(self.folder, what, "copy the pack again, or pack the cohort again")


class _Mapped:
    """A file of raw values. Views are writable, to avoid warnings of torch, but writes never reach the file."""

    def __init__(self, path: Path, dtype: str, sizes: dict[str, int]) -> None:
        self._map = _copy_on_write(path, sizes[path.name]) if sizes[path.name] else None
        self._values = np.empty(0, dtype) if self._map is None else np.frombuffer(self._map, dtype)

    def part(self, offset: int, shape: tuple[int, ...], ahead: bool = False) -> NDArray[Any]:
        values = self._values[offset : offset + math.prod(shape)].reshape(shape)
        if ahead and self._map is not None and hasattr(mmap, "MADV_WILLNEED"):
            start = offset * self._values.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, start, (offset * self._values.itemsize - start) + values.nbytes)
        return values if values.flags.writeable else values.copy()


def _copy_on_write(path: Path, length: int) -> mmap.mmap:
    with path.open("rb") as file:
        try:
            if sys.platform == "linux":
                flags, access = mmap.MAP_PRIVATE | MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                return mmap.mmap(file.fileno(), length, flags=flags, prot=access)
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY)
        except OSError:
            # on systems that do not overcommit memory, a read-only mapping reserves none
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)


@lru_cache(maxsize=KEPT_OPEN)
def _opened(folder: Path, state: tuple[tuple[int, int, int], ...]) -> Pack:
    """Cached by `state`, the state of the files: a pack that was written to is opened again."""
    index = read_index(folder)
    if index is None or not index.entries:
        fail(folder, "there is no finished pack in the folder", "pack the cohort (again)")
    return Pack(folder, index)
