"""Which files hold benchmark sets, and reading them by what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from asmil.classic.bag_set import BagSet
from asmil.classic.delimited_text import read_delimited
from asmil.classic.mat_file import read_mat
from asmil.classic.npz_file import read_npz_set
from asmil.classic.svmlight import is_svmlight, read_svmlight
from asmil.errors import AsmilError

TEXT_SUFFIXES = (".data", ".csv", ".svm", ".svmlight", ".txt")
SUFFIXES = (".npz", ".mat", *TEXT_SUFFIXES)


def find_sets(paths: Iterable[Path]) -> list[Path]:
    """The files behind files and folders, by name; two files that would be one set are refused."""
    found = [file for path in paths for file in (_in_folder(path) if path.is_dir() else [_existing(path)])]
    by_name: dict[str, Path] = {}
    for file in dict.fromkeys(found):
        if file.stem in by_name:
            raise AsmilError(
                f"{by_name[file.stem]} and {file} would both be called {file.stem}; name files, not their folder, or "
                "rename one"
            )
        by_name[file.stem] = file
    return list(by_name.values())


def read_set(path: Path) -> BagSet:
    """A set from one file; text is told by its first line, whatever the file is called."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz_set(path)
    if suffix == ".mat":
        return read_mat(path)
    if suffix not in TEXT_SUFFIXES:
        raise AsmilError(f"{path}: files that can be read end in {', '.join(SUFFIXES)}; convert it")
    return read_svmlight(path) if is_svmlight(_first_line(path)) else read_delimited(path)


def _first_line(path: Path) -> str:
    """The first line that says something, less its comment."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        told = (line.partition("#")[0].strip() for line in lines)
        return next(islice((line for line in told if line), 1), "")


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
