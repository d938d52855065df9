"""Features from files of plain arrays: torch's `.pt` and NumPy's `.npy` and `.npz`. Nothing in them is executed."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.torch_version import TorchVersion

from asmil.cohort.numpy_files import DAMAGED_NUMPY, NPY_MAGIC, is_npz, read_npy, read_npz
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import FEATURE_NAMES, Layout

ZIP_MAGIC = b"PK"
PICKLE_MAGIC = b"\x80"
# what torch raises on damaged files, found by testing many
DAMAGED_TORCH = (*DAMAGED_NUMPY, AttributeError, AssertionError, struct.error)
_reconstruct = np.empty(0).__reduce__()[0]
# the names that the pickles of NumPy 2 and of NumPy 1 have for what makes an array
NUMPY_GLOBALS: list[Any] = [
    *((_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("_core", "core")),
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"},
]
CAN_ALLOW = TorchVersion(torch.__version__) >= "2.6"
"""Before, torch could not allow globals by name for the time of one file."""
_allowing = Lock()


@dataclass(frozen=True)
class ArrayFile:
    """The features of a slide as a file of arrays holds them; coordinates are level-0 pixels."""

    layout: Layout
    features: Tensor
    coords: NDArray[Any] | None = None


def read_array_file(path: Path, mmap: bool = False) -> ArrayFile | None:
    """The arrays of a torch or NumPy file, recognized by its first bytes; None for any other file.

    mmap: only a few values are needed, so they stay on disk until they are read, if the format allows it
    """
    with path.open("rb") as file:
        start = file.read(len(NPY_MAGIC))
    if start == NPY_MAGIC or (start.startswith(ZIP_MAGIC) and is_npz(path)):
        return _from_numpy(path, start == NPY_MAGIC, mmap)
    if start.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        return _from_torch(path, mmap and start.startswith(ZIP_MAGIC))
    return None


def first_line(error: Exception) -> str:
    """The first line of an error message, without quotes around it."""
    return (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]


def _from_numpy(path: Path, single: bool, mmap: bool) -> ArrayFile:
    try:
        arrays: Any = read_npy(path, mmap) if single else read_npz(path)
    except FileNotFoundError:
        raise
    except DAMAGED_NUMPY as error:
        what = f"the file is damaged, or holds objects instead of numbers ({first_line(error)})"
        fail(path, what, "write plain arrays with numpy.save or numpy.savez")
    return _chosen(path, "numpy", arrays)


def _from_torch(path: Path, mmap: bool) -> ArrayFile:
    try:
        values = _load(path, mmap)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found is None:
            fail(path, "the file is damaged or was not saved by torch", "copy it again or extract the slide again")
        fail(
            path,
            f"the file holds pickled objects ({found[1]}), which could run code when opened, and is refused",
            "save a plain tensor instead: torch.save(features, path)",
        )
    except FileNotFoundError:
        raise
    except DAMAGED_TORCH as error:
        what = f"the file is truncated or damaged ({first_line(error)})"
        fail(path, what, "copy it again or extract the slide again")
    return _chosen(path, "tensor", values)


def _load(path: Path, mmap: bool) -> Any:
    """Tensors, and arrays of NumPy, which TRIDENT saves with torch; all other objects are refused."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        if "numpy" not in str(error) or not CAN_ALLOW:
            raise
    with _allowing, torch.serialization.safe_globals(NUMPY_GLOBALS):
        return torch.load(path, map_location="cpu", weights_only=True)


def _chosen(path: Path, layout: Layout, held: Any) -> ArrayFile:
    """The features in what a file holds: an array by itself, or by name."""
    if not isinstance(held, Mapping):
        return ArrayFile(layout, _as_features(path, held))
    names = [name for name in FEATURE_NAMES if name in held]
    if len(names) != 1:
        what = f"the file holds {listed(list(held)) or 'nothing'}"
        fail(path, what, "it must hold 'features' (N x D) and may hold 'coords' (N x 2, level-0 pixels)")
    coords = held.get("coords")
    return ArrayFile(layout, _as_features(path, held[names[0]]), None if coords is None else _as_array(path, coords))


def _as_features(path: Path, values: Any) -> Tensor:
    if isinstance(values, np.ndarray):
        array = _as_array(path, values)
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    if not isinstance(values, Tensor) or values.layout != torch.strided or values.is_quantized or values.is_meta:
        what = f"the file holds a {type(values).__name__}, not a tensor of N x D"
        fail(path, what, "save the features alone: torch.save(features, path)")
    return values.detach()


def _as_array(path: Path, values: Any) -> NDArray[Any]:
    array = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "fiub":
        fail(path, f"the file holds values of type {array.dtype}, not numbers", "save an array of numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
