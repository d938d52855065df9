"""Which tool wrote an HDF5 feature file, and what it says; decided by content, never by folder names.

The layouts are those of TRIDENT, CLAM, STAMP (2 and before), the cohort files of ACMIL and ASMIL, and ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from asmil.cohort.attributes import integer, number, plain
from asmil.cohort.bag import LOWRES
from asmil.cohort.problems import fail, listed
from asmil.cohort.source import CoordsUnit, FeatureSource, Layout, Provenance
from asmil.errors import did_you_mean

FORMAT_KEY = "asmil_format"
FORMAT_VERSION = 1
FEATURE_NAMES = ("features", "feats", "feat")
TRIDENT_COORD_KEYS = ("patch_size_level0", "target_magnification", "level0_magnification")
STAMP_KEYS = ("stamp_version", "extractor", "unit", "tile_size_um")
HISTORIC_TILE_UM = 256.0
HISTORIC_TILE_PX = 224


@dataclass(frozen=True)
class Header:
    """One slide in an open HDF5 file: its datasets and what the attributes say about them."""

    layout: Layout
    features: h5py.Dataset
    coords: h5py.Dataset | None
    provenance: Provenance
    coords_unit: CoordsUnit | None = "px"
    um_per_unit: float = 1.0
    magnification: float | None = None
    lowres: h5py.Group | None = None


def read_header(file: h5py.File, source: FeatureSource) -> Header:
    """Recognize the layout of the slide that `source` names; two possible readings are an error."""
    node = _node(file, source)
    name = _feature_name(node, source)
    header = _header(file, name, node[name], node.get("coords"), source)
    lowres = node.get(LOWRES)
    return replace(header, lowres=lowres) if isinstance(lowres, h5py.Group) else header


def slide_groups(path: Path) -> list[str]:
    """The names of the groups of a cohort file (one group a slide); empty for a file of one slide."""
    with h5py.File(path, "r", locking=False) as file:
        return [name for name, node in file.items() if name != LOWRES and _is_slide(node)]


def common_step(coords: NDArray[Any]) -> int | None:
    """The most frequent distance between neighbors along y, None where no column has two tiles.

    Never the smallest: contours have grids of their own, and two of them may lie a pixel apart.
    """
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
    node = file.get(source.group)
    if not isinstance(node, h5py.Group):
        fail(source.path, f"there is no group '{source.group}'", did_you_mean(source.group, file.keys()))
    return node


def _feature_name(node: h5py.Group, source: FeatureSource) -> str:
    names = [name for name in FEATURE_NAMES if isinstance(node.get(name), h5py.Dataset)]
    slides = [name for name, child in node.items() if name != LOWRES and _is_slide(child)]
    if len(names) == 1 and not slides:
        return names[0]
    if names:
        fail(
            source,
            f"two readings are possible: features are in {listed([*names, *slides])}",
            "keep one of them in the file",
        )
    if slides:
        fail(
            source,
            f"the file holds {len(slides)} slides as groups ({listed(slides)})",
            f"name one, e.g. {source.path.name}::{slides[0]}, or give the file as the features of the cohort",
        )
    return fail(
        source,
        f"no dataset 'features', 'feats' or 'feat'; the file has {listed(list(node)) or 'nothing'}",
        "give a feature file of asmil, TRIDENT, CLAM or STAMP",
    )


def _asmil(file: h5py.File, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource) -> Header:
    version = int(file.attrs[FORMAT_KEY])
    if version > FORMAT_VERSION:
        fail(source, f"format {version} is newer than this asmil reads ({FORMAT_VERSION})", "update asmil")
    known = {field.name: plain(file.attrs.get(field.name)) for field in fields(Provenance)}
    return Header("asmil", features, coords, Provenance(**known))


def _trident(features: h5py.Dataset, coords: h5py.Dataset | None, attrs: Mapping[str, Any]) -> Header:
    provenance = Provenance(
        encoder=plain(features.attrs.get("encoder")),
        tile_px=integer(attrs.get("patch_size")),
        tile_px_level0=integer(attrs.get("patch_size_level0")),
        slide_width_px=integer(attrs.get("level0_width")),
        slide_height_px=integer(attrs.get("level0_height")),
    )
    magnification = number(attrs.get("target_magnification"))
    return Header("trident", features, coords, provenance, magnification=magnification)


def _clam_provenance(attrs: Mapping[str, Any]) -> Provenance:
    side = integer(attrs.get("patch_size"))
    if side is None or "downsample" not in attrs:
        return Provenance(tile_px=side)
    factor = int(np.ravel(attrs["downsample"])[-1])
    return Provenance(tile_px=side, tile_px_level0=side * factor)


def _stamp(file: h5py.File, features: h5py.Dataset, coords: h5py.Dataset | None, source: FeatureSource) -> Header:
    attrs = file.attrs
    kind = plain(attrs.get("feat_type")) or "tile"
    if kind != "tile":
        fail(
            source,
            f"STAMP stored {kind} vectors (feat_type '{kind}'), one for many tiles",
            "a bag needs the features of its tiles: give the files that `stamp preprocess` writes",
        )
    if coords is not None and any(key in coords.attrs for key in TRIDENT_COORD_KEYS):
        fail(
            source,
            "two readings are possible: 'feats' means microns (STAMP), the attributes of 'coords' "
            "mean pixels (TRIDENT)",
            "keep the names and attributes of one tool",
        )
    if not any(key in attrs for key in STAMP_KEYS):
        return _stamp_historic(attrs, features, coords)
    unit = plain(attrs.get("unit")) or "um"
    if unit != "um":
        fail(source, f"coordinates in unit '{unit}' are not known", "extract the slide again with STAMP 2")
    provenance = Provenance(
        encoder=plain(attrs.get("extractor")),
        tile_um=number(attrs.get("tile_size_um", attrs.get("tile_size"))),
        tile_px=integer(attrs.get("tile_size_px")),
    )
    return Header("stamp", features, coords, provenance, coords_unit="um")


def _stamp_historic(attrs: Mapping[str, Any], features: h5py.Dataset, coords: h5py.Dataset | None) -> Header:
    """Coordinates count 256/224 microns; a stride far from 224 leaves the unit unknown: they are not used."""
    side = number(attrs.get("tile_size"))
    if side is None and coords is not None and coords.ndim == 2:
        side = common_step(coords[()])
    if coords is None or side is None or abs(side - HISTORIC_TILE_PX) > 2:
        return Header("stamp_historic", features, None, Provenance(), coords_unit=None)
    provenance = Provenance(tile_um=HISTORIC_TILE_UM, tile_px=HISTORIC_TILE_PX)
    scale = HISTORIC_TILE_UM / HISTORIC_TILE_PX
    return Header("stamp_historic", features, coords, provenance, coords_unit="um", um_per_unit=scale)
