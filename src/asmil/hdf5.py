"""New HDF5 files, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from asmil.files import replacing


@contextmanager
def new_hdf5(path: Path | str) -> Iterator[h5py.File]:
    """An HDF5 file to be filled; it is at `path` when the block ends well.

    The library writes through a Python file: with one of its own, a full disk crashes the process.
    """
    with replacing(path) as partial, partial.open("wb+") as raw, h5py.File(raw, "w") as file:
        yield file
