"""Read arrays from NumPy's `.npy` and `.npz` files, but no objects, which could run code."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.files import DAMAGED

NPY_MAGIC = b"\x93NUMPY"
DAMAGED_NUMPY = (*DAMAGED, EOFError, SyntaxError, struct.error, tokenize.TokenError, zlib.error, zipfile.BadZipFile)


def is_npz(path: Path) -> bool:
    """Whether a zip file contains NumPy arrays; torch files are also zip files."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except DAMAGED_NUMPY:
        return False


def read_npy(path: Path, mmap: bool = False) -> NDArray[Any]:
    """The array of a `.npy` file; `mmap` maps it into memory instead of reading it."""
    array: NDArray[Any] = np.load(path, mmap_mode="c" if mmap else None, allow_pickle=False)
    return array


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file by name, or only those with the given names, if present; others are not read."""
    with np.load(path, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it contains one array without a name")
        return {name: archive[name] for name in archive.files if names is None or name in names}
