"""Opening a feature file of any layout, with one sentence for whatever can go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.cohort.array_files import ArrayFile, read_array_file
from asmil.cohort.bag import LOWRES_TILES, refuse_wrong_coords
from asmil.cohort.formats import Header, explained, read_header
from asmil.cohort.pack_index import info_of, is_pack
from asmil.cohort.pack_reading import Pack
from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureInfo, FeatureSource, Layout
from asmil.files import refuse_special_file
from asmil.hdf5 import reading_hdf5


@dataclass(frozen=True)
class OpenFeatures:
    """A slide's features, ready to be read; valid as long as its file is open.

    validated: the values are known to be those of a valid bag, as all in a pack with checksums are
    checksum: what asmil noted when it wrote the file, see `checksum_of`
    """

    info: FeatureInfo
    values: h5py.Dataset | Tensor
    coords: h5py.Dataset | NDArray[Any] | None = None
    um_per_unit: float = 1.0
    lowres: Mapping[str, h5py.Dataset | NDArray[Any]] | None = None
    validated: bool = False
    checksum: int | None = None

    def features(self, rows: NDArray[Any] | slice = slice(None)) -> Tensor:
        """The features of some tiles (ascending rows), in the type in which they are stored."""
        values = self.values
        return as_tensor(values[0, rows] if len(values.shape) == 3 else values[rows])

    def read_coords(self) -> NDArray[Any] | None:
        """Coordinates N x 2, in `info.coords_unit`; what cannot lie on a slide is refused."""
        if self.coords is None or self.info.n_tiles == 0:
            return None
        coords = np.asarray(self.coords[()])
        if coords.ndim == 3 and coords.shape[0] == 1:
            coords = coords[0]
        refuse_wrong_coords(self.info.source, torch.from_numpy(coords.astype(np.float64)), self.info.n_tiles)
        return coords * self.um_per_unit if self.info.coords_unit == "um" else coords


@contextmanager
def open_features(source: FeatureSource, mmap: bool = False) -> Iterator[OpenFeatures]:
    """Open a feature file, or a slide of a pack, read-only and without locking.

    mmap: only a few values are needed, so a tensor file or a pack is left on disk until read
    """
    refuse_special_file(source.path)
    with explained(source.path):
        if is_pack(source.path):
            yield _open_pack(source, whole=not mmap)
        elif (arrays := read_array_file(source.path, mmap)) is not None:
            yield _open_arrays(source, arrays)
        else:
            with reading_hdf5(source.path) as file:
                yield _open_hdf5(read_header(file, source), source)


def as_tensor(values: Any) -> Tensor:
    """A tensor of the values as stored; foreign byte order is turned round."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _open_hdf5(header: Header, source: FeatureSource) -> OpenFeatures:
    values = header.features
    info = _info(source, header.layout, values.shape, str(values.dtype), values.dtype.itemsize)
    known = asdict(header.provenance) | {
        "coords_unit": None if header.coords is None else header.coords_unit,
        "magnification": header.magnification,
    }
    return OpenFeatures(
        FeatureInfo(**(info | known)),
        values,
        header.coords,
        header.um_per_unit,
        header.lowres,
        checksum=header.checksum,
    )


def _open_arrays(source: FeatureSource, arrays: ArrayFile) -> OpenFeatures:
    values = arrays.features
    dtype = str(values.dtype).removeprefix("torch.")
    info = _info(source, arrays.layout, tuple(values.shape), dtype, values.element_size())
    if arrays.coords is not None:
        return OpenFeatures(FeatureInfo(**(info | {"coords_unit": "px"})), values, arrays.coords)
    sibling = source.path.parent.parent / "h5_files" / f"{source.path.stem}.h5"
    if sibling.is_file():
        with open_features(FeatureSource(sibling)) as beside:
            coords = beside.read_coords()
            if coords is not None and len(coords) == info["n_tiles"] and beside.info.layout == "clam":
                side = {"tile_px": beside.info.tile_px, "tile_px_level0": beside.info.tile_px_level0}
                known = info | side | {"layout": "clam", "coords_unit": "px"}
                return OpenFeatures(FeatureInfo(**known), values, coords)
    return OpenFeatures(FeatureInfo(**info), values)


def _open_pack(source: FeatureSource, whole: bool) -> OpenFeatures:
    pack = Pack.open(source.path)
    entry = pack.entry(source.group)
    if whole:
        pack.verify_once(entry)
    info = info_of(source.path, pack.dtype, entry)
    values = torch.from_numpy(pack.features(entry, whole))
    tiles = pack.lowres(entry, whole)
    lowres = None if tiles is None else {LOWRES_TILES: tiles}
    return OpenFeatures(info, values, pack.coords(entry), lowres=lowres, validated=entry.crc32 is not None)


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
    if len(shape) == 1:
        what = (
            f"the file holds one vector of {shape[0]} values for the slide (a slide embedding), not features of tiles"
        )
        fail(source, what, "give the file with the features of its tiles, N x D")
    if len(shape) != 2:
        fail(source, f"features have shape {shape}, not N x D (tiles x features)", "extract the slide again")
    return shape[0], shape[1]
