"""Opening a feature file of any layout, with one sentence for whatever can go wrong."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.cohort.bag import LOWRES_TILES
from asmil.cohort.formats import Header, read_header
from asmil.cohort.pack_index import info_of, is_pack
from asmil.cohort.pack_reading import Pack
from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureInfo, FeatureSource, Layout
from asmil.errors import AsmilError
from asmil.files import refuse_special_file

TORCH_MAGIC = (b"PK", b"\x80")
# what h5py and torch raise on files with missing or altered bytes, as tried out on many
DAMAGED_HDF5 = (OSError, RuntimeError, KeyError, ValueError, TypeError)
DAMAGED_TORCH = (*DAMAGED_HDF5, EOFError, IndexError, AttributeError, AssertionError, struct.error)


@dataclass(frozen=True)
class OpenFeatures:
    """A slide's features, ready to be read; valid as long as its file is open.

    validated: the values are known to be those of a valid bag, as all in a pack are
    """

    info: FeatureInfo
    values: h5py.Dataset | Tensor
    coords: h5py.Dataset | NDArray[Any] | None = None
    um_per_unit: float = 1.0
    lowres: h5py.Group | Mapping[str, NDArray[Any]] | None = None
    validated: bool = False

    def features(self, rows: NDArray[Any] | slice = slice(None)) -> Tensor:
        """The features of some tiles (ascending rows), in the type in which they are stored."""
        values = self.values
        return as_tensor(values[0, rows] if len(values.shape) == 3 else values[rows])

    def read_coords(self) -> NDArray[Any] | None:
        """Coordinates N x 2, in `info.coords_unit`."""
        if self.coords is None:
            return None
        coords = np.asarray(self.coords[()])
        if coords.ndim == 3 and coords.shape[0] == 1:
            coords = coords[0]
        return coords * self.um_per_unit if self.info.coords_unit == "um" else coords


@contextmanager
def open_features(source: FeatureSource, mmap: bool = False) -> Iterator[OpenFeatures]:
    """Open a feature file, or a slide of a pack, read-only and without locking.

    mmap: only a few values are needed, so a tensor file or a pack is left on disk until read
    """
    refuse_special_file(source.path)
    with _explained(source):
        if is_pack(source.path):
            yield _open_pack(source, ahead=not mmap)
            return
        with source.path.open("rb") as file:
            is_tensor = file.read(2).startswith(TORCH_MAGIC)
        if is_tensor:
            yield _open_tensor(source, mmap)
        else:
            with h5py.File(source.path, "r", locking=False) as file:
                yield _open_hdf5(read_header(file, source), source)


def as_tensor(values: Any) -> Tensor:
    """A tensor of the values as stored; foreign byte order is turned round."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


@contextmanager
def _explained(source: FeatureSource) -> Iterator[None]:
    try:
        yield
    except AsmilError:
        raise
    except FileNotFoundError:
        fail(source.path, "the feature file does not exist", "correct its path or extract the slide")
    except IsADirectoryError:
        fail(source.path, "this is a folder, not a feature file", "name one file a slide")
    except PermissionError:
        fail(source.path, "the feature file may not be read", "change its permissions")
    except DAMAGED_HDF5 as error:
        reason = "is truncated" if "truncated" in str(error) else "is damaged, or neither HDF5 nor a torch file"
        fail(
            source.path,
            f"the feature file {reason} ({_first_line(error)})",
            "copy it again or extract the slide again",
        )


def _open_hdf5(header: Header, source: FeatureSource) -> OpenFeatures:
    values = header.features
    info = _info(source, header.layout, values.shape, str(values.dtype), values.dtype.itemsize)
    known = asdict(header.provenance) | {
        "coords_unit": None if header.coords is None else header.coords_unit,
        "magnification": header.magnification,
    }
    return OpenFeatures(FeatureInfo(**(info | known)), values, header.coords, header.um_per_unit, header.lowres)


def _open_tensor(source: FeatureSource, mmap: bool) -> OpenFeatures:
    values = _load_tensor(source.path, mmap)
    dtype = str(values.dtype).removeprefix("torch.")
    info = _info(source, "tensor", tuple(values.shape), dtype, values.element_size())
    sibling = source.path.parent.parent / "h5_files" / f"{source.path.stem}.h5"
    if sibling.is_file():
        with open_features(FeatureSource(sibling)) as beside:
            coords = beside.read_coords()
            if coords is not None and len(coords) == info["n_tiles"] and beside.info.layout == "clam":
                side = {"tile_px": beside.info.tile_px, "tile_px_level0": beside.info.tile_px_level0}
                known = info | side | {"layout": "clam", "coords_unit": "px"}
                return OpenFeatures(FeatureInfo(**known), values, coords)
    return OpenFeatures(FeatureInfo(**info), values)


def _open_pack(source: FeatureSource, ahead: bool) -> OpenFeatures:
    pack = Pack.open(source.path)
    entry = pack.entry(source.group)
    info = info_of(source.path, pack.dtype, entry)
    values = torch.from_numpy(pack.features(entry, ahead))
    tiles = pack.lowres(entry, ahead)
    lowres = None if tiles is None else {LOWRES_TILES: tiles}
    return OpenFeatures(info, values, pack.coords(entry), lowres=lowres, validated=True)


def _load_tensor(path: Path, mmap: bool) -> Tensor:
    try:
        with path.open("rb") as file:
            mappable = file.read(2) == b"PK"
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and mappable)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        if found is None:
            fail(
                path,
                "the file is damaged or was not saved by torch",
                "copy it again or extract the slide again",
            )
        fail(
            path,
            f"the file holds pickled objects ({found[1]}), which could run code when opened, and is refused",
            "save a plain tensor instead: torch.save(features, path)",
        )
    except DAMAGED_TORCH as error:
        fail(
            path,
            f"the file is truncated or damaged ({_first_line(error)})",
            "copy it again or extract the slide again",
        )
    if not isinstance(values, Tensor):
        fail(
            path,
            f"the file holds a {type(values).__name__}, not a tensor of N x D",
            "save the features alone: torch.save(features, path)",
        )
    return values


def _info(source: FeatureSource, layout: Layout, shape: tuple[int, ...], dtype: str, item_bytes: int) -> dict[str, Any]:
    n_tiles, width = _tiles_and_width(shape, source)
    return {
        "source": source,
        "layout": layout,
        "n_tiles": n_tiles,
        "width": width,
        "dtype": dtype,
        "n_bytes": n_tiles * width * item_bytes,
    }


def _tiles_and_width(shape: tuple[int, ...], source: FeatureSource) -> tuple[int, int]:
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if shape == (0,):
        return 0, 0
    if len(shape) != 2:
        fail(source, f"features have shape {shape}, not N x D (tiles x features)", "extract the slide again")
    return shape[0], shape[1]


def _first_line(error: Exception) -> str:
    return str(error).strip("'\"").splitlines()[0] if str(error) else type(error).__name__
