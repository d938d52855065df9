"""Open feature files of any layout; every error is one sentence.

HDF5 files of asmil, TRIDENT, CLAM and STAMP (2 and 1), and cohort files of ACMIL and ASMIL are recognized by their
content, never by folder names; see `read_header`. `array_files` reads files of plain arrays, `pack` reads packs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from asmil.cohort.array_files import first_line, read_array_file
from asmil.cohort.hdf5 import DAMAGED_HDF5, member, members, reading_hdf5
from asmil.cohort.magnifications import with_parents
from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npz
from asmil.cohort.open_features import OpenFeatures, common_step, opened
from asmil.cohort.pack.files import is_pack
from asmil.cohort.pack.index import info_of
from asmil.cohort.pack.reading import Pack
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import (
    FEATURE_NAMES,
    LOWRES,
    LOWRES_TILES,
    FeatureSource,
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


@contextmanager
def open_features(source: FeatureSource, mmap: bool = False) -> Iterator[OpenFeatures]:
    """Open a feature file, or a slide of a pack, read-only and without locking.

    mmap: map a tensor file or a pack into memory, since only a few values are needed
    """
    if source.coarser:
        with ExitStack() as files:
            finest, *coarser = (files.enter_context(open_features(part, mmap)) for part in source.parts)
            yield with_parents(source, finest, coarser)
        return
    refuse_special_file(source.path)
    with explained(source.path):
        if is_pack(source.path):
            yield _open_pack(source, whole=not mmap)
        elif is_zarr_store(source.path):
            yield read_zarr(source)
        elif (arrays := read_array_file(source, mmap)) is not None:
            yield _with_coords(arrays)
        else:
            with reading_hdf5(source.path) as file:
                yield read_header(file, source)


def _with_coords(features: OpenFeatures) -> OpenFeatures:
    """The features of a file of arrays; if it has no coordinates, with those of a file next to it."""
    if features.coords is not None:
        return features
    info, path = features.info, features.info.source.path
    index = path.with_suffix(".index.npz")
    if index.is_file() and (corners := _slideflow_corners(index, info.n_tiles)) is not None:
        known = replace(info, coords_unit="px", tile_px_level0=corners[1], tile_inferred=True)
        return replace(features, info=known, coords=corners[0])
    sibling = path.parent.parent / "h5_files" / f"{path.stem}.h5"
    if sibling.is_file():
        with open_features(FeatureSource(sibling)) as beside:
            coords, of_clam = beside.read_coords(), beside.info
            if coords is not None and len(coords) == info.n_tiles and of_clam.layout == "clam":
                known = replace(info, tile_px=of_clam.tile_px, tile_px_level0=of_clam.tile_px_level0)
                return replace(features, info=replace(known, layout="clam", coords_unit="px"), coords=coords)
    return features


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


def _open_pack(source: FeatureSource, whole: bool) -> OpenFeatures:
    pack = Pack.open(source.path)
    entry = pack.entry(source.group)
    if whole:
        pack.verify_once(entry)
    info = info_of(source.path, pack.dtype, entry)
    values = pack.features(entry, whole)
    tiles = pack.lowres(entry, whole)
    lowres = None if tiles is None else {LOWRES_TILES: tiles}
    return OpenFeatures(info, values, pack.coords(entry), lowres=lowres, validated=entry.crc32 is not None)


# Layouts of HDF5 files


def read_header(file: h5py.File, source: FeatureSource) -> OpenFeatures:
    """Recognize the layout of the slide at `source`; an ambiguous layout is an error."""
    node = _node(file, source)
    if source.group is None and text(file.attrs.get("encoding-type")) == "anndata":
        header = _anndata(file, source)
    else:
        name = _feature_name(node, source)
        features, coords = _numbers(node, name, source), _numbers(node, "coords", source)
        if coords is None:
            # the names in the features published by the authors of UNI, whose coords also have a batch axis
            coords = _numbers(node, "coords_patching", source)
        assert features is not None
        header = _header(file, name, features, coords, source)
        if isinstance(lowres := member(node, LOWRES), h5py.Group):
            tiles = {name: data for name, data in members(lowres) if isinstance(data, h5py.Dataset)}
            header = replace(header, lowres=tiles)
    if not header.info.slide_vector:
        return header
    # coordinates stored with a slide vector belong to the tiles it was computed from (TRIDENT, STAMP)
    return replace(header, coords=None, info=replace(header.info, coords_unit=None))


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


def _header(
    file: h5py.File, name: str, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource
) -> OpenFeatures:
    if source.group is not None or name == "feat":
        return opened(source, "cohort_h5", features, coords)
    if name == "feats":
        return _stamp(file, features, coords, source)
    if FORMAT_KEY in file.attrs:
        return _asmil(file, features, coords, source)
    coord_attrs = {} if coords is None else coords.attrs
    if "encoder" in features.attrs or any(key in coord_attrs for key in TRIDENT_COORD_KEYS):
        return _trident(source, features, coords, coord_attrs)
    return opened(source, "clam", features, coords, _clam_provenance(coord_attrs))


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


def _asmil(file: h5py.File, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource) -> OpenFeatures:
    attrs = file.attrs
    version = integer(attrs.get(FORMAT_KEY))
    if version is None:
        fail(source, f"attribute '{FORMAT_KEY}' is not a number", COPY_AGAIN)
    if version > FORMAT_VERSION:
        fail(source, f"format {version} is too new for this version of asmil (up to {FORMAT_VERSION})", "update asmil")
    as_type: dict[str, Callable[[Any], Any]] = {"str | None": text, "float | None": number, "int | None": integer}
    known = {field.name: as_type[str(field.type)](attrs.get(field.name)) for field in fields(Provenance)}
    checksum = integer(attrs.get(CHECKSUM_KEY))
    return opened(source, "asmil", features, coords, Provenance(**known), checksum=checksum)


def _anndata(file: h5py.File, source: FeatureSource) -> OpenFeatures:
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
    return opened(source, "anndata", features, coords, tile_spec_provenance(known))


def _scalars(node: object) -> dict[str, Any]:
    """The single values in a group, by name."""
    if not isinstance(node, h5py.Group):
        return {}
    return {name: data[()] for name, data in members(node) if isinstance(data, h5py.Dataset) and data.shape == ()}


def _trident(
    source: FeatureSource, features: h5py.Dataset, coords: h5py.Dataset | None, attrs: Mapping[str, Any]
) -> OpenFeatures:
    provenance = Provenance(
        encoder=text(features.attrs.get("encoder")),
        tile_px=integer(attrs.get("patch_size")),
        tile_px_level0=integer(attrs.get("patch_size_level0")),
        slide_width_px=integer(attrs.get("level0_width")),
        slide_height_px=integer(attrs.get("level0_height")),
    )
    magnification = number(attrs.get("target_magnification"))
    return opened(source, "trident", features, coords, provenance, magnification=magnification)


def _clam_provenance(attrs: Mapping[str, Any]) -> Provenance:
    side = integer(attrs.get("patch_size"))
    scale = None if "downsample" not in attrs else number(np.ravel(attrs["downsample"])[-1:])
    return Provenance(tile_px=side, tile_px_level0=side * int(scale) if side and scale else None)


def _stamp(file: h5py.File, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource) -> OpenFeatures:
    attrs = file.attrs
    kind = plain(attrs.get("feat_type")) or "tile"
    if kind != "tile":
        rows = 1 if features.ndim == 1 else features.shape[0]
        if rows != 1:
            fail(source, f"STAMP stored {rows} {kind} vectors (feat_type '{kind}')", "give files with one vector each")
        provenance = Provenance(encoder=text(attrs.get("encoder")) or text(attrs.get("extractor")))
        return opened(source, "stamp", features, None, provenance, slide_vector=True)
    if coords is not None and any(key in coords.attrs for key in TRIDENT_COORD_KEYS):
        what = "the layout is ambiguous: 'feats' means microns (STAMP), but the attributes of 'coords' pixels (TRIDENT)"
        fail(source, what, "keep the names and attributes of one tool")
    unit = plain(attrs.get("unit"))
    if unit not in ("um", "px", None):
        fail(source, f"the unit '{unit}' of the coordinates is unknown", "extract the slide again with STAMP 2")
    if unit != "um" and "tile_size_um" not in attrs:
        return _stamp_historic(source, attrs, features, coords)
    provenance = Provenance(
        encoder=text(attrs.get("extractor")),
        tile_um=number(attrs.get("tile_size_um", attrs.get("tile_size"))),
        tile_px=integer(attrs.get("tile_size_px")),
    )
    return opened(source, "stamp", features, coords, provenance, coords_unit="um")


def _stamp_historic(
    source: FeatureSource, attrs: Mapping[str, Any], features: h5py.Dataset, coords: h5py.Dataset | None
) -> OpenFeatures:
    """STAMP 1 and earlier: coordinates are in units of 256/224 microns, which the file does not state.

    If the stride is far from 224 (other tile sizes), the unit is unknown and the coordinates are not used.
    """
    encoder = text(attrs.get("extractor"))
    side = number(attrs.get("tile_size"))
    if side is None and coords is not None and coords.ndim == 2 and coords.shape[1] == 2:
        side = common_step(coords[()])
    if coords is None or side is None or abs(side - HISTORIC_TILE_PX) > 2:
        return opened(source, "stamp_historic", features, None, Provenance(encoder=encoder))
    provenance = Provenance(encoder=encoder, tile_um=HISTORIC_TILE_UM, tile_px=HISTORIC_TILE_PX)
    scale = HISTORIC_TILE_UM / HISTORIC_TILE_PX
    return opened(source, "stamp_historic", features, coords, provenance, coords_unit="um", um_per_unit=scale)


def text(value: Any) -> str | None:
    """An attribute as text, or None."""
    value = plain(value)
    return None if value is None else str(value)
