"""Read features from files of plain arrays, torch's `.pt` and NumPy's `.npy` and `.npz`, without executing code."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.numpy_files import DAMAGED_NUMPY, NPY_MAGIC, is_npz, read_npy, read_npz
from asmil.cohort.open_features import OpenFeatures, opened
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import FEATURE_NAMES, FeatureSource, Layout

if TYPE_CHECKING:
    from torch import Tensor

ZIP_MAGIC = b"PK"
PICKLE_MAGIC = b"\x80"
DAMAGED_TORCH = (*DAMAGED_NUMPY, AttributeError, AssertionError, struct.error)
_reconstruct = np.empty(0).__reduce__()[0]
# the names of array constructors in pickles of NumPy 2 and NumPy 1
NUMPY_GLOBALS: list[Any] = [
    *((_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("_core", "core")),
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "?bBhHiIlLqQefd"},
]
_allowing = Lock()


def read_array_file(source: FeatureSource, mmap: bool = False) -> OpenFeatures | None:
    """The features in a torch or NumPy file, recognized by its first bytes; None for any other file.

    mmap: map the file into memory, if the format allows it, since only a few values are needed
    """
    path = source.path
    with path.open("rb") as file:
        start = file.read(len(NPY_MAGIC))
    if start == NPY_MAGIC or (start.startswith(ZIP_MAGIC) and is_npz(path)):
        return _chosen(source, "numpy", _from_numpy(path, start == NPY_MAGIC, mmap))
    if start.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        return _chosen(source, "tensor", _from_torch(path, mmap and start.startswith(ZIP_MAGIC)))
    return None


def first_line(error: Exception) -> str:
    """The first line of an error message, without quotes around it."""
    return (str(error).strip("'\"").splitlines() or [type(error).__name__])[0]


def _from_numpy(path: Path, single: bool, mmap: bool) -> Any:
    try:
        return read_npy(path, mmap) if single else read_npz(path)
    except FileNotFoundError:
        raise
    except DAMAGED_NUMPY as error:
        what = f"the file is damaged, or contains objects instead of numbers ({first_line(error)})"
        fail(path, what, "write plain arrays with numpy.save or numpy.savez")


def _from_torch(path: Path, mmap: bool) -> Any:
    try:
        return _load(path, mmap)
    except pickle.UnpicklingError as error:
        named_global = re.search(r"GLOBAL (\S+)", str(error))
        if named_global is None:
            fail(path, "the file is damaged or was not saved by torch", "copy it again or extract the slide again")
        what = f"the file contains pickled objects ({named_global[1]}), which could run code, so it is not opened"
        fail(path, what, "save a plain tensor instead: torch.save(features, path)")
    except FileNotFoundError:
        raise
    except DAMAGED_TORCH as error:
        what = f"the file is truncated or damaged ({first_line(error)})"
        fail(path, what, "copy it again or extract the slide again")


def _load(path: Path, mmap: bool) -> Any:
    """Load tensors, and NumPy arrays, which TRIDENT saves with torch; all other objects are an error."""
    import torch
    from torch.torch_version import TorchVersion

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        # earlier versions of torch could not allow globals by name for a single file
        if "numpy" not in str(error) or TorchVersion(torch.__version__) < "2.6":
            raise
    with _allowing, torch.serialization.safe_globals(NUMPY_GLOBALS):
        return torch.load(path, map_location="cpu", weights_only=True)


def _chosen(source: FeatureSource, layout: Layout, held: Any) -> OpenFeatures:
    """The features in the content of a file: a single array, or an array by name; coordinates are level-0 pixels."""
    path = source.path
    if not isinstance(held, Mapping):
        return opened(source, layout, _as_features(path, held))
    names = [name for name in FEATURE_NAMES if name in held]
    if len(names) != 1:
        what = f"the file contains {listed(list(held)) or 'nothing'}"
        fail(path, what, "it must contain 'features' (N x D) and may contain 'coords' (N x 2, level-0 pixels)")
    coords = None if held.get("coords") is None else _as_array(path, held["coords"])
    return opened(source, layout, _as_features(path, held[names[0]]), coords)


def _as_features(path: Path, values: Any) -> NDArray[Any] | Tensor:
    if isinstance(values, np.ndarray):
        return _as_array(path, values)
    import torch

    if not isinstance(values, torch.Tensor) or values.layout != torch.strided or values.is_quantized or values.is_meta:
        what = f"the file contains a {type(values).__name__}, not an N x D tensor"
        fail(path, what, "save only the features: torch.save(features, path)")
    return values.detach()


def _as_array(path: Path, values: Any) -> NDArray[Any]:
    array = values.detach().numpy() if hasattr(values, "detach") else np.asarray(values)
    if array.dtype.kind not in "fiub":
        fail(path, f"the file contains values of type {array.dtype}, not numbers", "save an array of numbers")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
