"""A benchmark set: bags of instances in one array, with one label per bag."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asmil.cohort.bag import LARGEST_FEATURE
from asmil.errors import AsmilError
from asmil.tables.arrays import Floats32, Integers


@dataclass(frozen=True)
class BagSet:
    """N instances of D features in B bags.

    path: the file that it was read from
    features: N x D, unscaled; the instances of a bag follow each other
    bag: N, the index of an instance's bag, 0 to B - 1
    label: B, 0 or 1
    """

    name: str
    path: Path
    features: Floats32
    bag: Integers
    label: Integers

    @property
    def n_bags(self) -> int:
        return len(self.label)

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    def bags(self) -> list[Floats32]:
        """The instances of every bag, n x D each."""
        return np.split(self.features, np.flatnonzero(np.diff(self.bag)) + 1)

    def fingerprint(self) -> str:
        """A hash of all numbers; it does not depend on the format of the file."""
        parts = (np.array(self.features.shape), self.features, self.bag, self.label)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()

    def without_last_column(self) -> BagSet:
        """The set without its last feature."""
        if self.n_features < 2:
            raise AsmilError(f"{self.path}: it has one feature only, so its last column cannot be left out")
        return replace(self, features=np.ascontiguousarray(self.features[:, :-1]))


def make_bag_set(path: Path, features: ArrayLike, bag_names: ArrayLike, row_labels: ArrayLike) -> BagSet:
    """A set from rows in any order; a bag is positive if one of its rows is.

    bag_names: N, anything that names the bag of a row; bags are numbered as they appear
    row_labels: N, 0 and 1 or -1 and 1
    """
    values = _numbers(path, features)
    names = _names(path, bag_names)
    labels = binary_labels(path, row_labels)
    if not len(values) == len(names) == len(labels):
        raise AsmilError(
            f"{path}: {len(values)} rows of features, {len(names)} of bags and {len(labels)} of labels do not fit "
            "together; every instance needs one of each"
        )
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    appearance = np.argsort(np.argsort(first))
    bag = appearance[inverse.reshape(-1)].astype(np.int64)
    label = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(label, bag, labels)
    if len(np.unique(label)) < 2:
        raise AsmilError(f"{path}: all {len(label)} bags are of one class; a benchmark needs both")
    order = np.argsort(bag, kind="stable")
    return BagSet(path.stem, path, np.ascontiguousarray(values[order]), bag[order], label)


def binary_labels(path: Path, labels: ArrayLike) -> Integers:
    """Labels as 0 and 1, from 0 and 1 or -1 and 1."""
    values = np.asarray(labels).reshape(-1)
    if values.dtype.kind not in "iufbUSO":
        raise AsmilError(f"{path}: its labels are of type {values.dtype}; they must be 0 and 1, or -1 and 1")
    try:
        kinds = set(np.unique(values.astype(np.float64)).tolist())
    except (TypeError, ValueError):
        kinds = {float("nan")}
    if not kinds or not (kinds <= {0.0, 1.0} or kinds <= {-1.0, 1.0}):
        shown = ", ".join(map(str, np.unique(values.astype(str))[:4].tolist()))
        raise AsmilError(f"{path}: its labels are {shown or 'missing'}; they must be 0 and 1, or -1 and 1")
    return np.asarray(values.astype(np.float64) > 0, dtype=np.int64)


def _names(path: Path, bag_names: ArrayLike) -> NDArray[Any]:
    names = np.asarray(bag_names).reshape(-1)
    if names.dtype == object:
        names = names.astype(str)
    if names.dtype.kind not in "iufbUS" or (names.dtype.kind == "f" and not np.isfinite(names).all()):
        raise AsmilError(f"{path}: its bags are named by {names.dtype} values; give numbers or texts")
    return names


def _numbers(path: Path, features: ArrayLike) -> Floats32:
    values = np.asarray(features)
    if values.ndim != 2 or not values.size or values.dtype.kind not in "fiub":
        raise AsmilError(
            f"{path}: its features are an array of shape {list(values.shape)} and type {values.dtype}; they must be a "
            "table of numbers, instances x features"
        )
    # overflow is reported below, with its row and column
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    wrong = np.argwhere(~(np.abs(values) <= LARGEST_FEATURE))
    if len(wrong):
        row, column = wrong[0] + 1
        raise AsmilError(
            f"{path}: row {row}, feature {column} is not a finite number up to {LARGEST_FEATURE:g}; repair "
            "or leave out that row"
        )
    return values
