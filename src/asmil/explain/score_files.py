"""Scores of any model, one per tile, from NumPy, CSV, Parquet or HDF5 files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.coordinates import refuse_wrong_coords
from asmil.cohort.hdf5 import DAMAGED_HDF5, dataset, reading_hdf5
from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npy
from asmil.errors import AsmilError
from asmil.files import refuse_special_file
from asmil.settings.documents import one_line
from asmil.tables.arrays import Floats, Integers
from asmil.tables.text_table import read_text_table

SCORE_NAMES = ("score", "scores", "value", "attention", "attention_scores", "probability", "prob")
SUFFIXES = (".npy", ".csv", ".parquet", ".h5")
LARGEST = float(np.finfo(np.float32).max)
"""Scores must be finite in float32, the precision of models."""
MOST_SHOWN = 30
"""Characters of a wrong cell in an error."""


@dataclass(frozen=True)
class Scores:
    """N values (nan: no value) and, if the file has them, N x 2 corners of the tiles in level-0 pixels."""

    values: Floats
    coords: Integers | None
    name: str


def find_scores(source: Path, slide: str) -> Path:
    """The file of a slide's scores: the given file, or the file with the name of the slide in a folder."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise AsmilError(f"{source}: there is no such file or folder of scores; correct the path")
    for suffix in SUFFIXES:
        if (path := source / f"{slide}{suffix}").is_file():
            return path
    raise AsmilError(f"{slide}: no scores in {source}; looked for {', '.join(slide + suffix for suffix in SUFFIXES)}")


def read_scores(path: Path) -> Scores:
    """Read `.npy` (N values), `.csv` or `.parquet` (a column of scores, and x and y if known), or `.h5`.

    HDF5 files are those of `asmil predict --attention` (`attention`, `coords`) and of CLAM (`attention_scores`). A tile
    may have no score only in a table, where its cell is empty: its value is nan.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _read_npy(path)
    if suffix in (".csv", ".parquet"):
        return _read_table(path)
    if suffix in (".h5", ".hdf5"):
        return _read_hdf5(path)
    raise AsmilError(f"{path}: scores are read from {', '.join(SUFFIXES)}; save them as one of these")


def _read_npy(path: Path) -> Scores:
    try:
        stored = read_npy(path)
    except DAMAGED_NUMPY as error:
        raise AsmilError(f"{path}: the scores cannot be read ({one_line(error)}); save them again as .npy") from None
    return Scores(_numbers(path, stored.squeeze()), None, "score")


def _read_table(path: Path) -> Scores:
    table = read_text_table(path)
    columns = {name.strip().lower(): cells for name, cells in zip(table.names, table.cells, strict=True)}
    if len(columns) < len(table.names):
        raise AsmilError(f"{path}: two columns have the same name; remove or rename one of them")
    named = [name for name in SCORE_NAMES if name in columns]
    others = [name for name in columns if name not in ("x", "y", "slide", "tile", "index")]
    if not named and len(others) != 1:
        raise AsmilError(f"{path}: it is not clear which column contains the scores; call it 'score'")
    chosen = named[0] if named else others[0]
    values = _column(path, chosen, columns[chosen])
    if np.isnan(values).all():
        raise AsmilError(f"{path}: column '{chosen}' contains no numbers; give every tile a score")
    if "x" not in columns or "y" not in columns:
        return Scores(values, None, chosen)
    corners = np.stack([_column(path, name, columns[name]) for name in ("x", "y")], axis=1)
    return Scores(values, _corners(path, corners, len(values)), chosen)


def _column(path: Path, name: str, cells: Sequence[str]) -> Floats:
    """The numbers of a column; nan where a cell is empty."""
    values: Floats = pd.to_numeric(pd.Series(cells), errors="coerce").to_numpy(dtype=np.float64)
    for row in np.flatnonzero(~(np.abs(values) <= LARGEST)).tolist():
        if cells[row]:
            raise AsmilError(
                f"{path}: column '{name}' is {cells[row][:MOST_SHOWN]!r} in row {row + 1}, not a finite number; "
                "correct it, or leave the cell empty"
            )
    return values


def _read_hdf5(path: Path) -> Scores:
    refuse_special_file(path)
    try:
        with reading_hdf5(path) as file:
            name = next((name for name in SCORE_NAMES if name in file), None)
            if name is None:
                raise AsmilError(f"{path}: it contains none of {', '.join(SCORE_NAMES)}; save the scores as .npy")
            values = _numbers(path, np.squeeze(dataset(file, name)[()]))
            coords = _numbers(path, dataset(file, "coords")[()]) if "coords" in file else None
    except AsmilError:
        raise
    except DAMAGED_HDF5 as error:
        raise AsmilError(f"{path}: the file is damaged ({type(error).__name__}); write it again") from None
    return Scores(values, None if coords is None else _corners(path, coords, len(np.atleast_1d(values))), name)


def _numbers(path: Path, stored: npt.NDArray[Any]) -> Floats:
    array = np.asarray(stored)
    if array.dtype.kind not in "fiub":
        raise AsmilError(f"{path}: it contains values of type {array.dtype}, not numbers; save an array of numbers")
    values = array.astype(np.float64)
    if not (finite := np.abs(values) <= LARGEST).all():
        index = np.argwhere(~finite)[0].tolist()
        row = index[0] + 1 if index else 1
        raise AsmilError(
            f"{path}: row {row} is {values[tuple(index)]}, not a finite number; correct it, or, if tiles have no "
            "score, give a table (.csv) in which their cells are empty"
        )
    return values


def _corners(path: Path, coords: Floats, n_tiles: int) -> Integers:
    refuse_wrong_coords(path, coords, n_tiles)
    corners: Integers = np.rint(coords).astype(np.int64)
    return corners
