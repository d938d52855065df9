"""Scores of any model, one per tile, from NumPy, CSV, Parquet or HDF5 files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npy
from asmil.errors import AsmilError
from asmil.hdf5 import DAMAGED_HDF5

SCORE_NAMES = ("score", "scores", "value", "attention", "attention_scores", "probability", "prob")
SUFFIXES = (".npy", ".csv", ".parquet", ".h5")


@dataclass(frozen=True)
class Scores:
    """N values, and where the file has them, N x 2 corners of the tiles in level-0 pixels."""

    values: npt.NDArray[np.float64]
    coords: npt.NDArray[np.int64] | None
    name: str


def find_scores(place: Path, slide: str) -> Path:
    """The file of a slide's scores: the file itself, or one in a folder that is named like the slide."""
    if not place.is_dir():
        if not place.is_file():
            raise AsmilError(f"{place}: there is no such file or folder of scores; correct the path")
        return place
    for suffix in SUFFIXES:
        if (path := place / f"{slide}{suffix}").is_file():
            return path
    raise AsmilError(f"{slide}: no scores in {place}; looked for {', '.join(slide + suffix for suffix in SUFFIXES)}")


def read_scores(path: Path) -> Scores:
    """Read `.npy` (N values), `.csv` or `.parquet` (a column of scores, and x and y where known), or `.h5`.

    HDF5 files are those of `asmil predict --attention` (`attention`, `coords`) and of CLAM (`attention_scores`).
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        try:
            return Scores(np.asarray(read_npy(path), dtype=np.float64).squeeze(), None, "score")
        except DAMAGED_NUMPY as error:
            raise AsmilError(f"{path}: the scores cannot be read ({error}); save them again as .npy") from None
    if suffix in (".csv", ".parquet"):
        return _read_table(path)
    if suffix in (".h5", ".hdf5"):
        return _read_hdf5(path)
    raise AsmilError(f"{path}: scores are read from {', '.join(SUFFIXES)}; save them as one of these")


def _read_table(path: Path) -> Scores:
    try:
        table = pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise AsmilError(f"{path}: the table of scores cannot be read ({error}); save it again") from None
    columns = {str(name).strip().lower(): name for name in table.columns}
    named = [name for name in SCORE_NAMES if name in columns]
    others = [name for name in columns if name not in ("x", "y", "slide", "tile", "index")]
    if not named and len(others) != 1:
        raise AsmilError(f"{path}: it is not clear which column holds the scores; call it 'score'")
    chosen = columns[named[0] if named else others[0]]
    values = pd.to_numeric(table[chosen], errors="coerce").to_numpy(dtype=np.float64)
    if np.isnan(values).all():
        raise AsmilError(f"{path}: column '{chosen}' holds no numbers")
    coords = None
    if "x" in columns and "y" in columns:
        corners = table[[columns["x"], columns["y"]]].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64)
        if not np.isfinite(corners).all():
            raise AsmilError(f"{path}: columns x and y must be numbers, without gaps; correct the table")
        coords = np.rint(corners).astype(np.int64)
    return Scores(values, coords, str(chosen))


def _read_hdf5(path: Path) -> Scores:
    import h5py

    try:
        with h5py.File(path) as file:
            name = next((name for name in SCORE_NAMES if name in file), None)
            if name is None:
                raise AsmilError(f"{path}: it holds none of {', '.join(SCORE_NAMES)}; save the scores as .npy")
            values = np.asarray(file[name][()], dtype=np.float64).squeeze()
            coords = np.rint(file["coords"][()]).astype(np.int64) if "coords" in file else None
    except AsmilError:
        raise
    except DAMAGED_HDF5 as error:
        raise AsmilError(f"{path}: the file is damaged ({type(error).__name__}); write it again") from None
    return Scores(values, coords, name)
