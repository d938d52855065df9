"""Feature files as each tool writes them, and small cohorts, for the tests of this folder."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import torch

from asmil.cohort.features import FeatureSource, Provenance, write_features
from asmil.cohort.manifest import Slide

WIDTH = 6


def tiles(seed=0, n=12, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal((n, WIDTH)).astype(dtype)


def grid(n=12, side=512):
    """Corners of a grid of three columns, in level-0 pixels."""
    index = np.arange(n)
    return np.stack([index % 3 * side, index // 3 * side], axis=1).astype(np.int64)


def write_trident(path, features, coords, encoder="uni_v1", magnification=20, side=512):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in (("features", features), ("coords", coords)):
            chunks = (1, *values.shape[1:])
            data = file.create_dataset(
                name, values.shape, values.dtype, chunks=chunks, maxshape=(None, *values.shape[1:])
            )
            data[:] = values
        file["features"].attrs.update({"name": path.stem, "savetodir": "None", "encoder": encoder})
        file["coords"].attrs.update(
            {
                "patch_size": 256,
                "patch_size_level0": side,
                "level0_magnification": 40,
                "target_magnification": magnification,
                "overlap": 0,
                "name": path.stem,
                "level0_width": 40_000,
                "level0_height": 30_000,
            }
        )


def write_clam(path, features, coords, **attrs):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in (("features", features), ("coords", coords)):
            data = file.create_dataset(
                name, data=values, chunks=(32, values.shape[1]), maxshape=(None, values.shape[1])
            )
            data.attrs.update(attrs if name == "coords" else {})


def write_stamp(path, features, coords_um, **attrs):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["coords"], file["feats"] = coords_um, features
        file.attrs.update(
            {
                "stamp_version": "2.1.0",
                "extractor": "virchow2",
                "unit": "um",
                "tile_size_um": 256.0,
                "tile_size_px": 224,
                "code_hash": "1234abcd",
                "feat_type": "tile",
            }
            | attrs
        )


def write_tensor(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def make_slides(folder: Path, n=6, tiles_each=12, dtype="float32", **columns):
    """Feature files of n slides, as rows of a manifest."""
    slides = []
    for number in range(n):
        name = f"s{number:02d}"
        path = folder / "features" / f"{name}.h5"
        write_features(path, tiles(number, tiles_each), grid(tiles_each), Provenance(encoder="uni"), dtype)
        slides.append(Slide(name, f"p{number:02d}", str(number % 2), FeatureSource(path), **columns))
    return slides


def write_manifest(folder: Path, slides, **columns):
    """A manifest of slides whose features lie in the folder beside it."""
    table = pd.DataFrame([{"slide": s.slide, "patient": s.patient, "label": s.label} for s in slides])
    path = folder / "cohort.csv"
    table.assign(**columns).to_csv(path, index=False)
    return path
