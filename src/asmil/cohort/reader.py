"""Open feature files of any layout; every error is one sentence.

HDF5 files of asmil, TRIDENT, CLAM and STAMP (2 and 1), and cohort files of ACMIL and ASMIL are recognized by their
content, never by folder names; see `read_header`. `array_files` reads files of plain arrays, `pack` reads packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.cohort.array_files import ArrayFile, first_line, read_array_file
from asmil.cohort.bag import LARGEST_COORDINATE, LOWRES, LOWRES_TILES, refuse_wrong_coords
from asmil.cohort.hdf5 import DAMAGED_HDF5, member, members, reading_hdf5
from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npz
from asmil.cohort.pack.files import is_pack
from asmil.cohort.pack.index import info_of
from asmil.cohort.pack.reading import Pack
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import (
    FEATURE_NAMES,
    CoordsUnit,
    FeatureInfo,
    FeatureSource,
    Layout,
    Provenance,
    integer,
    number,
    plain,
    tile_spec_provenance,
)
from asmil.cohort.zarr_stores import is_zarr_store, read_zarr
from asmil.errors import AsmilError, did_you_mean
from asmil.files import refuse_special_file

FORMAT_KEY = "asmil_format"
FORMAT_VERSION = 1
TRIDENT_COORD_KEYS = ("patch_size_level0", "target_magnification", "level0_magnification")
CHECKSUM_KEY = "crc32"
HISTORIC_TILE_UM = 256.0
HISTORIC_TILE_PX = 224
COPY_AGAIN = "copy the file again or extract the slide again"


@dataclass(frozen=True)
class OpenFeatures:
    """A slide's features, ready to be read; valid as long as its file is open.

    validated: whether the values are known to form a valid bag, as in a pack with checksums
    checksum: stored when asmil wrote the file, see `checksum_of`
    """

    info: FeatureInfo
    values: h5py.Dataset | Tensor
    coords: h5py.Dataset | NDArray[Any] | None = None
    um_per_unit: float = 1.0
    lowres: Mapping[str, h5py.Dataset | NDArray[Any]] | None = None
    validated: bool = False
    checksum: int | None = None

    def features(self, rows: NDArray[Any] | slice = slice(None)) -> Tensor:
        """The features of some tiles (ascending rows), in their stored type."""
        values = self.values
        if self.info.slide_vector and len(values.shape) == 1:
            return as_tensor(values[()])[None]
        return as_tensor(values[0, rows] if len(values.shape) == 3 else values[rows])

    def read_coords(self) -> NDArray[Any] | None:
        """Coordinates N x 2, in `info.coords_unit`; an error if they cannot be on a slide."""
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

    mmap: map a tensor file or a pack into memory, since only a few values are needed
    """
    refuse_special_file(source.path)
    with explained(source.path):
        if is_pack(source.path):
            yield _open_pack(source, whole=not mmap)
        elif is_zarr_store(source.path):
            yield _open_zarr(source)
        elif (arrays := read_array_file(source.path, mmap)) is not None:
            yield _open_arrays(source, arrays)
        else:
            with reading_hdf5(source.path) as file:
                yield _open_hdf5(read_header(file, source), source)


def as_tensor(values: Any) -> Tensor:
    """A tensor of the values as stored, in native byte order."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _open_hdf5(header: Header, source: FeatureSource) -> OpenFeatures:
    values = header.features
    info = _info(source, header.layout, values.shape, str(values.dtype), values.dtype.itemsize)
    # coordinates stored with a slide vector belong to the tiles it was computed from (TRIDENT, STAMP)
    coords = None if info["slide_vector"] or header.slide_vector else header.coords
    known = asdict(header.provenance) | {
        "slide_vector": info["slide_vector"] or header.slide_vector,
        "coords_unit": None if coords is None else header.coords_unit,
        "magnification": header.magnification,
    }
    return OpenFeatures(
        FeatureInfo(**(info | known)), values, coords, header.um_per_unit, header.lowres, checksum=header.checksum
    )


def _open_arrays(source: FeatureSource, arrays: ArrayFile) -> OpenFeatures:
    values = arrays.features
    dtype = str(values.dtype).removeprefix("torch.")
    info = _info(source, arrays.layout, tuple(values.shape), dtype, values.element_size())
    if arrays.coords is not None:
        return OpenFeatures(FeatureInfo(**(info | {"coords_unit": "px"})), values, arrays.coords)
    index = source.path.with_suffix(".index.npz")
    if index.is_file() and (corners := _slideflow_corners(index, info["n_tiles"])) is not None:
        known = info | {"coords_unit": "px", "tile_px_level0": corners[1], "tile_inferred": True}
        return OpenFeatures(FeatureInfo(**known), values, corners[0])
    sibling = source.path.parent.parent / "h5_files" / f"{source.path.stem}.h5"
    if sibling.is_file():
        with open_features(FeatureSource(sibling)) as beside:
            coords = beside.read_coords()
            if coords is not None and len(coords) == info["n_tiles"] and beside.info.layout == "clam":
                side = {"tile_px": beside.info.tile_px, "tile_px_level0": beside.info.tile_px_level0}
                known = info | side | {"layout": "clam", "coords_unit": "px"}
                return OpenFeatures(FeatureInfo(**known), values, coords)
    return OpenFeatures(FeatureInfo(**info), values)


def _slideflow_corners(index: Path, n_tiles: int) -> tuple[NDArray[Any], int] | None:
    """Upper left corners and side of the tiles, from the centers in the index that slideflow writes next to a bag.

    The side is the step between neighbors; without neighbors, side and corners are unknown.
    """
    todo = "write the bag and its index again, or remove the index to read the features without coordinates"
    try:
        arrays = read_npz(index, ("locations", "arr_0"))
    except DAMAGED_NUMPY as error:
        fail(index, f"slideflow's index of the tiles is damaged ({first_line(error)})", todo)
    centers = next((arrays[name] for name in ("locations", "arr_0") if name in arrays), None)
    if centers is None or centers.shape != (n_tiles, 2):
        return None
    if centers.dtype.kind not in "fiu" or not np.isfinite(centers).all():
        fail(index, "slideflow's index of the tiles contains other values than finite numbers", todo)
    side_px = common_step(centers)
    return None if side_px is None else (centers.astype(np.int64) - side_px // 2, side_px)


def _open_zarr(source: FeatureSource) -> OpenFeatures:
    store = read_zarr(source)
    values = torch.from_numpy(store.features)
    dtype = str(values.dtype).removeprefix("torch.")
    info = _info(source, "anndata", tuple(values.shape), dtype, values.element_size())
    known = asdict(store.provenance) | {"coords_unit": None if store.coords is None else "px"}
    return OpenFeatures(FeatureInfo(**(info | known)), values, store.coords)


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
        "slide_vector": len(shape) == 1 and shape != (0,),
        "dtype": dtype,
        "n_bytes": n_tiles * width * item_bytes,
    }


def _tiles_and_width(shape: tuple[int, ...], source: FeatureSource) -> tuple[int, int]:
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if shape == (0,):
        return 0, 0
    if len(shape) == 1:
        return 1, shape[0]
    if len(shape) != 2:
        fail(source, f"features have shape {shape}, not N x D (tiles x features)", "extract the slide again")
    return shape[0], shape[1]


# Layouts of HDF5 files


@dataclass(frozen=True)
class Header:
    """One slide in an open HDF5 file: its datasets and attributes."""

    layout: Layout
    features: h5py.Dataset
    coords: h5py.Dataset | None
    provenance: Provenance
    coords_unit: CoordsUnit | None = "px"
    um_per_unit: float = 1.0
    magnification: float | None = None
    lowres: Mapping[str, h5py.Dataset] | None = None
    checksum: int | None = None
    slide_vector: bool = False


def read_header(file: h5py.File, source: FeatureSource) -> Header:
    """Recognize the layout of the slide at `source`; an ambiguous layout is an error."""
    node = _node(file, source)
    if source.group is None and text(file.attrs.get("encoding-type")) == "anndata":
        return _anndata(file, source)
    name = _feature_name(node, source)
    features, coords = _numbers(node, name, source), _numbers(node, "coords", source)
    if coords is None:
        # the names in the features published by the authors of UNI, whose coords also have a batch axis
        coords = _numbers(node, "coords_patching", source)
    assert features is not None
    header = _header(file, name, features, coords, source)
    lowres = member(node, LOWRES)
    if not isinstance(lowres, h5py.Group):
        return header
    return replace(header, lowres={name: data for name, data in members(lowres) if isinstance(data, h5py.Dataset)})


def slide_groups(path: Path) -> list[str]:
    """The names of the groups of a cohort file (one group per slide); empty for a file of one slide."""
    with explained(path), reading_hdf5(path) as file:
        return [name for name, node in members(file) if name != LOWRES and _is_slide(node)]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Convert errors of reading a feature file to one sentence."""
    try:
        yield
    except AsmilError:
        raise
    except FileNotFoundError:
        fail(path, "the feature file does not exist", "fix its path or extract the slide")
    except IsADirectoryError:
        fail(path, "this is a folder, not a feature file", "give one file per slide")
    except PermissionError:
        fail(path, "the feature file cannot be read", "change its permissions")
    except DAMAGED_HDF5 as error:
        reason = "is truncated" if "truncated" in str(error) else "is damaged, or has an unsupported format"
        fail(path, f"the feature file {reason} ({first_line(error)})", "copy it again or extract the slide again")


def common_step(coords: NDArray[Any]) -> int | None:
    """The most frequent distance between neighbors along y; None if no column has two tiles.

    Not the smallest distance: every contour has its own grid, and two grids may be one pixel apart.
    """
    coords = coords[(np.abs(coords) <= LARGEST_COORDINATE).all(axis=1)]
    order = np.lexsort((coords[:, 1], coords[:, 0]))
    steps = np.diff(coords[order], axis=0)
    along_y = np.rint(steps[(steps[:, 0] == 0) & (steps[:, 1] > 0), 1]).astype(np.int64)
    values, counts = np.unique(along_y, return_counts=True)
    return int(values[counts.argmax()]) if len(values) else None


def _header(
    file: h5py.File, name: str, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource
) -> Header:
    if source.group is not None or name == "feat":
        return Header("cohort_h5", features, coords, Provenance())
    if name == "feats":
        return _stamp(file, features, coords, source)
    if FORMAT_KEY in file.attrs:
        return _asmil(file, features, coords, source)
    coord_attrs = {} if coords is None else coords.attrs
    if "encoder" in features.attrs or any(key in coord_attrs for key in TRIDENT_COORD_KEYS):
        return _trident(features, coords, coord_attrs)
    return Header("clam", features, coords, _clam_provenance(coord_attrs))


def _is_slide(node: object) -> bool:
    return isinstance(node, h5py.Group) and any(name in node for name in FEATURE_NAMES)


def _node(file: h5py.File, source: FeatureSource) -> h5py.Group:
    if source.group is None:
        return file
    node: h5py.Group | h5py.Dataset | None = file
    for name in source.group.strip("/").split("/"):
        node = member(node, name) if isinstance(node, h5py.Group) else None
    if not isinstance(node, h5py.Group):
        fail(source.path, f"there is no group '{source.group}'", did_you_mean(source.group, file.keys()))
    return node


def _numbers(node: h5py.Group, name: str, source: FeatureSource) -> h5py.Dataset | None:
    """The dataset of numbers with this name, or None."""
    data = member(node, name)
    if data is None:
        return None
    if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "fiub":
        kind = f"values of type {data.dtype}" if isinstance(data, h5py.Dataset) else "a group"
        fail(source, f"'{name}' contains {kind}, not an array of numbers", COPY_AGAIN)
    return data


def _feature_name(node: h5py.Group, source: FeatureSource) -> str:
    names = [name for name in FEATURE_NAMES if isinstance(member(node, name), h5py.Dataset)]
    slides = [name for name, child in members(node) if name != LOWRES and _is_slide(child)]
    if len(names) == 1 and not slides:
        return names[0]
    if names:
        what = f"the layout is ambiguous: features are in {listed([*names, *slides])}"
        fail(source, what, "keep one of them in the file")
    if slides:
        todo = f"choose one, e.g. {source.path.name}::{slides[0]}, or give the file as the features of the cohort"
        fail(source, f"the file contains {len(slides)} slides as groups ({listed(slides)})", todo)
    what = f"there is no dataset 'features', 'feats' or 'feat'; the file contains {listed(list(node)) or 'nothing'}"
    return fail(source, what, "give a feature file of asmil, TRIDENT, CLAM, STAMP or LazySlide (.h5ad, .zarr)")


def _asmil(file: h5py.File, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource) -> Header:
    attrs = file.attrs
    version = integer(attrs.get(FORMAT_KEY))
    if version is None:
        fail(source, f"attribute '{FORMAT_KEY}' is not a number", COPY_AGAIN)
    if version > FORMAT_VERSION:
        fail(source, f"format {version} is too new for this version of asmil (up to {FORMAT_VERSION})", "update asmil")
    as_type: dict[str, Callable[[Any], Any]] = {"str | None": text, "float | None": number, "int | None": integer}
    known = {field.name: as_type[str(field.type)](attrs.get(field.name)) for field in fields(Provenance)}
    return Header("asmil", features, coords, Provenance(**known), checksum=integer(attrs.get(CHECKSUM_KEY)))


def _anndata(file: h5py.File, source: FeatureSource) -> Header:
    """AnnData as written by LazySlide: features in X, upper left corners in level-0 pixels in obsm/spatial."""
    features = member(file, "X")
    if isinstance(features, h5py.Group):
        fail(source, "the features (X) are a sparse matrix", "write them as a dense array: adata.X = adata.X.toarray()")
    features = _numbers(file, "X", source)
    if features is None:
        fail(source, "the AnnData file has no X", "write the features of the tiles as X, N x D")
    obsm = member(file, "obsm")
    coords = _numbers(obsm, "spatial", source) if isinstance(obsm, h5py.Group) else None
    notes = member(file, "uns")
    known = _scalars(member(notes, "tile_spec")) if isinstance(notes, h5py.Group) else {}
    return Header("anndata", features, coords, tile_spec_provenance(known))


def _scalars(node: object) -> dict[str, Any]:
    """The single values in a group, by name."""
    if not isinstance(node, h5py.Group):
        return {}
    return {name: data[()] for name, data in members(node) if isinstance(data, h5py.Dataset) and data.shape == ()}


def _trident(features: h5py.Dataset, coords: h5py.Dataset | None, attrs: Mapping[str, Any]) -> Header:
    provenance = Provenance(
        encoder=text(features.attrs.get("encoder")),
        tile_px=integer(attrs.get("patch_size")),
        tile_px_level0=integer(attrs.get("patch_size_level0")),
        slide_width_px=integer(attrs.get("level0_width")),
        slide_height_px=integer(attrs.get("level0_height")),
    )
    magnification = number(attrs.get("target_magnification"))
    return Header("trident", features, coords, provenance, magnification=magnification)


def _clam_provenance(attrs: Mapping[str, Any]) -> Provenance:
    side = integer(attrs.get("patch_size"))
    scale = None if "downsample" not in attrs else number(np.ravel(attrs["downsample"])[-1:])
    return Provenance(tile_px=side, tile_px_level0=side * int(scale) if side and scale else None)


def _stamp(file: h5py.File, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource) -> Header:
    attrs = file.attrs
    kind = plain(attrs.get("feat_type")) or "tile"
    if kind != "tile":
        rows = 1 if features.ndim == 1 else features.shape[0]
        if rows != 1:
            fail(source, f"STAMP stored {rows} {kind} vectors (feat_type '{kind}')", "give files with one vector each")
        provenance = Provenance(encoder=text(attrs.get("encoder")) or text(attrs.get("extractor")))
        return Header("stamp", features, None, provenance, coords_unit=None, slide_vector=True)
    if coords is not None and any(key in coords.attrs for key in TRIDENT_COORD_KEYS):
        what = "the layout is ambiguous: 'feats' means microns (STAMP), but the attributes of 'coords' pixels (TRIDENT)"
        fail(source, what, "keep the names and attributes of one tool")
    unit = plain(attrs.get("unit"))
    if unit not in ("um", "px", None):
        fail(source, f"the unit '{unit}' of the coordinates is unknown", "extract the slide again with STAMP 2")
    if unit != "um" and "tile_size_um" not in attrs:
        return _stamp_historic(attrs, features, coords)
    provenance = Provenance(
        encoder=text(attrs.get("extractor")),
        tile_um=number(attrs.get("tile_size_um", attrs.get("tile_size"))),
        tile_px=integer(attrs.get("tile_size_px")),
    )
    return Header("stamp", features, coords, provenance, coords_unit="um")


def _stamp_historic(attrs: Mapping[str, Any], features: h5py.Dataset, coords: h5py.Dataset | None) -> Header:
    """STAMP 1 and earlier: coordinates are in units of 256/224 microns, which the file does not state.

    If the stride is far from 224 (other tile sizes), the unit is unknown and the coordinates are not used.
    """
    encoder = text(attrs.get("extractor"))
    side = number(attrs.get("tile_size"))
    if side is None and coords is not None and coords.ndim == 2 and coords.shape[1] == 2:
        side = common_step(coords[()])
    if coords is None or side is None or abs(side - HISTORIC_TILE_PX) > 2:
        return Header("stamp_historic", features, None, Provenance(encoder=encoder), coords_unit=None)
    provenance = Provenance(encoder=encoder, tile_um=HISTORIC_TILE_UM, tile_px=HISTORIC_TILE_PX)
    scale = HISTORIC_TILE_UM / HISTORIC_TILE_PX
    return Header("stamp_historic", features, coords, provenance, coords_unit="um", um_per_unit=scale)


def text(value: Any) -> str | None:
    """An attribute as text, or None."""
    value = plain(value)
    return None if value is None else str(value)
