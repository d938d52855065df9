"""Write asmil's feature files, and read those of all supported tools.

asmil writes one HDF5 file per slide: `features` (N x D), `coords` (N x 2, level-0 pixels), provenance as attributes,
`quality/focus` and `quality/fold` (N each), and for methods that need them `lowres/tiles` (N x p x p x 3 bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.cohort.bag import COORDS_UM, Bag
from asmil.cohort.fingerprint import content_hash, fingerprint
from asmil.cohort.hdf5 import new_hdf5, set_attributes
from asmil.cohort.open_features import OpenFeatures, as_tensor, info_of
from asmil.cohort.problems import fail
from asmil.cohort.reader import CHECKSUM_KEY, FORMAT_KEY, FORMAT_VERSION, open_features
from asmil.cohort.source import LOWRES, LOWRES_TILES, FeatureInfo, FeatureSource, Provenance, checksum_of
from asmil.errors import AsmilError
from asmil.version import __version__

QUALITY = "quality"

__all__ = [
    "FeatureInfo",
    "FeatureSource",
    "Provenance",
    "content_hash",
    "fingerprint",
    "inspect_features",
    "read_bag",
    "read_bag_and_info",
    "write_features",
    "write_slide_vector",
]


def write_features(
    path: Path | str,
    features: NDArray[Any] | Tensor,
    coords: NDArray[Any] | Tensor,
    provenance: Provenance,
    dtype: Literal["float16", "float32"] = "float16",
    lowres: NDArray[np.uint8] | None = None,
    quality: Mapping[str, NDArray[np.float32]] | None = None,
) -> None:
    """Write a slide's feature file atomically.

    lowres: the same tiles at a low magnification, N x p x p x 3
    quality: measures of every tile by name, N each

    The datasets are contiguous: a bag is always read as a whole, and small chunks would make this many times slower.
    """
    path = Path(path)
    bag = Bag(torch.as_tensor(features), torch.as_tensor(coords), id=path.stem)
    stored = bag.features.to(getattr(torch, dtype))
    if not bool(torch.isfinite(stored).all()):
        largest = float(bag.features.abs().max())
        fail(path, f"values up to {largest:g} are beyond the range of {dtype}", "write them as float32")
    if lowres is not None and (lowres.dtype != np.uint8 or lowres.ndim != 4 or lowres.shape[0::3] != (len(bag), 3)):
        what = f"low-magnification tiles are {lowres.dtype} of shape {lowres.shape}"
        fail(path, what, f"give uint8 of {len(bag)} x p x p x 3")
    values, corners = stored.numpy(), np.rint(np.asarray(coords)).astype(np.int64)
    with new_hdf5(path) as file:
        file["features"] = values
        file["coords"] = corners
        if lowres is not None:
            file[f"{LOWRES}/{LOWRES_TILES}"] = lowres
        for name, measures in (quality or {}).items():
            file[f"{QUALITY}/{name}"] = measures
        set_attributes(file, _attributes(provenance, values, corners))
        set_attributes(file["coords"], _trident_attributes(provenance))


def write_slide_vector(path: Path | str, vector: NDArray[Any], provenance: Provenance) -> None:
    """Write one vector for a slide atomically; it is read as a bag of one tile without coordinates."""
    values = np.ascontiguousarray(vector, dtype=np.float32)
    with new_hdf5(Path(path)) as file:
        file["features"] = values
        set_attributes(file, _attributes(provenance, values))


def _attributes(provenance: Provenance, *arrays: NDArray[Any]) -> dict[str, Any]:
    known = {name: value for name, value in asdict(provenance).items() if value is not None}
    return {FORMAT_KEY: FORMAT_VERSION, "asmil_version": __version__, CHECKSUM_KEY: checksum_of(*arrays), **known}


def _trident_attributes(provenance: Provenance) -> dict[str, int]:
    """The known attributes of `coords` that the slide encoders of TRIDENT read."""
    side = provenance.tile_px_level0
    if side is None and provenance.tile_um and provenance.mpp:
        side = round(provenance.tile_um / provenance.mpp)
    known = {
        "patch_size_level0": side,
        "patch_size": provenance.tile_px,
        "level0_width": provenance.slide_width_px,
        "level0_height": provenance.slide_height_px,
    }
    return {name: value for name, value in known.items() if value is not None}


def inspect_features(source: FeatureSource) -> FeatureInfo:
    """The properties of a feature file, from its header alone; see `info_of`."""
    with open_features(source, mmap=True) as file:
        return info_of(file)


def read_bag(source: FeatureSource, id: str, mpp: float | None = None, verify: bool = False) -> Bag:
    """Read the bag of one slide; features keep their stored type.

    mpp: microns per level-0 pixel, needed to convert coordinates in microns to pixels. Without it they are kept
    in `extras["coords_um"]`, and `coords` is None.
    verify: compare a file written by asmil with its checksum. Slides of packs are verified when they are first read.
    """
    return read_bag_and_info(source, id, mpp, verify)[0]


def read_bag_and_info(
    source: FeatureSource,
    id: str,
    mpp: float | None = None,
    verify: bool = False,
    accept: Callable[[FeatureInfo], None] | None = None,
) -> tuple[Bag, FeatureInfo]:
    """The bag of one slide, and the header of its file, as it is; see `with_tile_side`.

    accept: raises if the header shows that the features cannot be used, before they are read
    """
    with open_features(source) as file:
        info = file.info
        if accept is not None:
            accept(info)
        if file.info.n_tiles == 0:
            fail(f"slide {id}", f"{source} contains no tiles", "leave the slide out or extract it again")
        features = file.features()
        altered = verify and _is_altered(file, features)
        coords, extras = _coords(file, mpp)
        if file.lowres is not None:
            extras[LOWRES] = {name: _lowres(values[()], source, id) for name, values in file.lowres.items()}
        validated = file.validated
    try:
        bag = Bag(features, coords, id=id, extras=extras, validated=validated)
    except AsmilError as error:
        raise AsmilError(f"{error} (file {source})") from None
    if altered:
        what = "the values have changed since the file was written (the checksum differs)"
        fail(source, what, "copy the file again or extract the slide again")
    return bag, info


def _lowres(values: NDArray[Any], source: FeatureSource, id: str) -> Tensor:
    """Low-magnification tiles and related arrays of the file; numbers must be finite."""
    # values beyond the range of float32 count as infinite; a comparison with NaN is false
    if values.dtype.kind == "f" and not (np.abs(values) <= np.finfo(np.float32).max).all():
        what = f"the low-magnification tiles in {source} contain NaN, infinite or too large values"
        fail(f"slide {id}", what, "extract the slide again")
    return as_tensor(values)


def _is_altered(file: OpenFeatures, features: Tensor) -> bool:
    if any(_is_altered(parent.file, parent.file.features()) for parent in file.parents):
        return True
    if file.checksum is None:
        return False
    own = file.own_features() if file.parents else features
    coords = None if file.coords is None else np.asarray(file.coords[()])
    return checksum_of(own.numpy(), coords) != file.checksum


def _coords(file: OpenFeatures, mpp: float | None) -> tuple[Tensor | None, dict[str, Any]]:
    values = file.read_coords()
    if values is None:
        return None, {}
    if file.info.coords_unit == "px":
        return torch.from_numpy(np.rint(values).astype(np.int64)), {}
    if mpp is None:
        return None, {COORDS_UM: torch.from_numpy(values.astype(np.float64))}
    return torch.from_numpy(np.rint(values / mpp).astype(np.int64)), {}
