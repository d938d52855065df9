"""Feature files of every tool, and packs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from asmil.cohort.features import FeatureSource, Provenance, fingerprint, inspect_features, read_bag, write_features
from asmil.cohort.manifest import cohort_from_features
from asmil.cohort.pack.index import read_index, write_index
from asmil.cohort.pack.packing import pack_features
from tests.campaigns.kinds import Kind
from tests.cohort.feature_writers import grid, make_slides, tiles, write_clam, write_stamp, write_tensor, write_trident

EXTRACTION = json.dumps({"settings": {"encoder": "uni"}, "slide": {"bytes": 1}, "tissue": {}, "precision": "float32"})


def read_features(path: Path, group: str | None = None) -> Any:
    """Everything that training and prediction take from a slide's features."""
    source = FeatureSource(path, group)
    return inspect_features(source), read_bag(source, "s7", mpp=0.5), fingerprint(source)


def _kind(name: str, file: str, form: str, make: Callable[[Path], None], **more: Any) -> Kind:
    return Kind(f"features {name}", file, form, make, lambda folder: read_features(folder / file), **more)


def _own(path: Path, **more: Any) -> None:
    made = Provenance(encoder="uni", tile_um=128.0, tile_px=224, mpp=0.25, mpp_source="tiff", extraction=EXTRACTION)
    write_features(path, tiles(), grid(), made, **more)


def _lowres(folder: Path) -> None:
    _own(folder / "s7.h5", lowres=np.arange(12 * 4 * 4 * 3, dtype=np.uint8).reshape(12, 4, 4, 3))


def _stamp_one(folder: Path) -> None:
    with h5py.File(folder / "s7.h5", "w") as file:
        file["coords"], file["feats"] = grid(side=224).astype(float), tiles(dtype=np.float16)
        file.attrs["extractor"] = "xiyuewang-ctranspath-7c998680"


def _stamp_historic(folder: Path) -> None:
    with h5py.File(folder / "s7.h5", "w") as file:
        file["coords"], file["feats"] = grid(side=224), tiles(dtype=np.float16)


def _clam_tensors(folder: Path) -> None:
    write_tensor(folder / "pt_files" / "s7.pt", torch.from_numpy(tiles()))
    write_clam(folder / "h5_files" / "s7.h5", tiles(), grid(), patch_size=256, downsample=[2.0, 2.0])


def _cohort_file(folder: Path) -> None:
    with h5py.File(folder / "cohort.h5", "w") as file:
        for number in range(3):
            file[f"s{number}/feat"], file[f"s{number}/coords"] = tiles(number), grid()


def _read_cohort_file(folder: Path) -> Any:
    slides = cohort_from_features(folder / "cohort.h5").slides
    return [read_features(slide.source.path, slide.source.group) for slide in slides]


def _pack(folder: Path) -> None:
    slides = make_slides(folder, 3)
    for slide in slides:
        os.utime(slide.source.path, ns=(0, 10**18))  # the index notes it
    pack_features(slides, folder / "cohort.pack")
    pack = folder / "cohort.pack"
    index = read_index(pack)
    assert index is not None
    entries = {name: replace(entry, source=f"made/{name}.h5") for name, entry in index.entries.items()}
    write_index(pack, replace(index, entries=entries))


def _read_pack(folder: Path) -> Any:
    slides = cohort_from_features(folder / "cohort.pack").slides
    return [read_features(slide.source.path, slide.source.group) for slide in slides]


def _pack_kind(file: str, form: str) -> Kind:
    return Kind(f"pack {file}", f"cohort.pack/{file}", form, _pack, _read_pack)


KINDS = (
    _kind("asmil", "s7.h5", "hdf5", lambda folder: _own(folder / "s7.h5")),
    _kind("asmil float32", "s7.h5", "hdf5", lambda folder: _own(folder / "s7.h5", dtype="float32")),
    _kind("asmil lowres", "s7.h5", "hdf5", _lowres),
    _kind("trident", "s7.h5", "hdf5", lambda folder: write_trident(folder / "s7.h5", tiles(), grid())),
    _kind("trident pt", "s7.pt", "torch", lambda folder: write_tensor(folder / "s7.pt", tiles())),
    _kind("clam", "s7.h5", "hdf5", lambda folder: write_clam(folder / "s7.h5", tiles(), grid())),
    _kind("clam pt", "pt_files/s7.pt", "torch", _clam_tensors),
    Kind(
        "features clam h5 beside pt",
        "h5_files/s7.h5",
        "hdf5",
        _clam_tensors,
        lambda folder: read_features(folder / "pt_files" / "s7.pt"),
    ),
    _kind("stamp 2", "s7.h5", "hdf5", lambda folder: write_stamp(folder / "s7.h5", tiles(), grid() / 2)),
    _kind("stamp 1", "s7.h5", "hdf5", _stamp_one),
    _kind("stamp historic", "s7.h5", "hdf5", _stamp_historic),
    _kind("tensor", "s7.pt", "torch", lambda folder: write_tensor(folder / "s7.pt", torch.from_numpy(tiles()))),
    _kind("npy", "s7.npy", "npy", lambda folder: np.save(folder / "s7.npy", tiles())),
    _kind(
        "npz",
        "s7.npz",
        "npz",
        lambda folder: np.savez(folder / "s7.npz", features=tiles(), coords=grid()),
    ),
    Kind("features cohort file", "cohort.h5", "hdf5", _cohort_file, _read_cohort_file),
    _pack_kind("index.json", "json"),
    _pack_kind("features.f16", "values"),
    _pack_kind("coords.i64", "bytes"),
)
