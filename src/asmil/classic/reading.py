"""Find the files of benchmark sets, and read them by their content."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from asmil.classic import mat_reader
from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.classic.text_sets import is_svmlight, read_delimited, read_svmlight
from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npz
from asmil.errors import AsmilError

TEXT_SUFFIXES = (".data", ".csv", ".svm", ".svmlight", ".txt")
SUFFIXES = (".npz", ".mat", *TEXT_SUFFIXES)


def find_sets(paths: Iterable[Path]) -> list[Path]:
    """The files behind files and folders, by name; two files with the same name are refused."""
    files = [file for path in paths for file in (_in_folder(path) if path.is_dir() else [_existing(path)])]
    by_name: dict[str, Path] = {}
    for file in dict.fromkeys(files):
        if file.stem in by_name:
            raise AsmilError(
                f"{by_name[file.stem]} and {file} would both be called {file.stem}; name files, not their folder, or "
                "rename one"
            )
        by_name[file.stem] = file
    return list(by_name.values())


def read_set(path: Path) -> BagSet:
    """A set from one file; the format of text is recognized by its first line, not by the file name."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz_set(path)
    if suffix == ".mat":
        return read_mat(path)
    if suffix not in TEXT_SUFFIXES:
        raise AsmilError(f"{path}: files that can be read end in {', '.join(SUFFIXES)}; convert it")
    return read_svmlight(path) if is_svmlight(_first_line(path)) else read_delimited(path)


def _first_line(path: Path) -> str:
    """The first line that is not empty, without its comment."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        stripped = (line.partition("#")[0].strip() for line in lines)
        return next(islice((line for line in stripped if line), 1), "")


def _in_folder(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    sets = [path for path in files if not path.stem.lower().startswith(("readme", "license"))]
    if not sets:
        raise AsmilError(f"{folder}: it holds no file that ends in {', '.join(SUFFIXES)}; name the files of the sets")
    return sets


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise AsmilError(f"{path} is neither a file nor a folder; check the path")
    return path


def read_npz_set(path: Path) -> BagSet:
    """An archive with `features` (N x D), `bag` (N) and `label` (one per bag or per instance)."""
    try:
        arrays = read_npz(path, ("features", "bag", "label"))
    except DAMAGED_NUMPY as error:
        reason = " ".join(str(error).split())
        raise AsmilError(
            f"{path}: it cannot be read as .npz ({reason}); download it again, or write it again with numpy.savez"
        ) from None
    missing = {"features", "bag", "label"} - arrays.keys()
    if missing:
        raise AsmilError(
            f"{path}: it has no {' and no '.join(sorted(missing))}; an .npz needs features (instances x features), "
            "bag (the bag of every instance) and label (one per bag)"
        )
    return from_arrays(path, arrays)


def from_arrays(path: Path, arrays: Mapping[str, Any]) -> BagSet:
    """A set from `features`, `bag` and `label`; their number decides if labels are of bags or instances."""
    bag, label = np.asarray(arrays["bag"]).reshape(-1), np.asarray(arrays["label"]).reshape(-1)
    if len(label) != len(bag):
        names = np.unique(bag) if bag.dtype.kind in "iu" else bag[:0]
        if len(names) != len(label) or not len(names) or names[0] != 0 or names[-1] != len(label) - 1:
            raise AsmilError(
                f"{path}: {len(label)} labels fit neither {len(bag)} instances nor {len(names)} bags numbered from 0; "
                "give one label per bag, in the order of the numbers in bag"
            )
        label = label[bag]
    return make_bag_set(path, arrays["features"], bag, label)


READER = Path(mat_reader.__file__)
TIMEOUT_S = 300.0


def read_mat(path: Path) -> BagSet:
    """A .mat file of one of the three forms in `mat_reader.FORMS`, read in a separate process."""
    with TemporaryDirectory(prefix="asmil-mat-") as folder:
        out = Path(folder) / "arrays.npz"
        # -P: no module beside the program, or in the working folder, is mistaken for one of SciPy's
        command = [sys.executable, "-P", "-X", "utf8", str(READER), str(path.absolute()), str(out)]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, encoding="utf-8")
        except subprocess.TimeoutExpired:
            raise AsmilError(
                f"{path}: it cannot be read as a .mat file within {TIMEOUT_S:g} s; write it again with '-v7'"
            ) from None
        if ended.returncode == mat_reader.REFUSED:
            raise AsmilError(f"{path}: {ended.stdout.strip()}")
        if ended.returncode != 0:
            raise AsmilError(
                f"{path}: it cannot be read as a .mat file (its reader ended with code {ended.returncode}: the file is "
                "damaged); write it again with '-v7'"
            )
        return from_arrays(path, read_npz(out))
