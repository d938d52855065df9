"""New HDF5 files, whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from asmil.files import replacing

DAMAGED_HDF5 = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, SystemError)
"""What h5py raises on files with missing or altered bytes, as tried out on many."""
# since 2008 the library can store its own structures with checksums, but does so only if it is asked to
CHECKED_STRUCTURES = ("v108", "v108")


@contextmanager
def new_hdf5(path: Path | str) -> Iterator[h5py.File]:
    """An HDF5 file to be filled; it is at `path` when the block ends well.

    It is built in memory: a disk that becomes full while the library writes to it crashes the process.
    """
    content = io.BytesIO()
    with h5py.File(content, "w", libver=CHECKED_STRUCTURES) as file:
        yield file
    with replacing(path) as partial:
        partial.write_bytes(content.getbuffer())
