"""Benchmark sets from NumPy archives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.cohort.numpy_files import DAMAGED_NUMPY, read_npz
from asmil.errors import AsmilError


def read_npz_set(path: Path) -> BagSet:
    """An archive with `features` (N x D), `bag` (N) and `label` (one a bag, or one an instance)."""
    try:
        arrays = read_npz(path, ("features", "bag", "label"))
    except DAMAGED_NUMPY as error:
        reason = " ".join(str(error).split())
        raise AsmilError(f"{path}: it cannot be read as .npz ({reason}); write it anew with numpy.savez") from None
    missing = {"features", "bag", "label"} - arrays.keys()
    if missing:
        raise AsmilError(
            f"{path}: it has no {' and no '.join(sorted(missing))}; an .npz needs features (instances x features), "
            "bag (the bag of every instance) and label (one a bag)"
        )
    return from_arrays(path, arrays)


def from_arrays(path: Path, arrays: Mapping[str, Any]) -> BagSet:
    """A set from `features`, `bag` and `label`; labels of bags are told from labels of instances by their number."""
    bag, label = np.asarray(arrays["bag"]).reshape(-1), np.asarray(arrays["label"]).reshape(-1)
    if len(label) != len(bag):
        names = np.unique(bag) if bag.dtype.kind in "iu" else bag[:0]
        if len(names) != len(label) or not len(names) or names[0] != 0 or names[-1] != len(label) - 1:
            raise AsmilError(
                f"{path}: {len(label)} labels fit neither {len(bag)} instances nor {len(names)} bags numbered from 0; "
                "give one label a bag, in the order of the numbers in bag"
            )
        label = label[bag]
    return make_bag_set(path, arrays["features"], bag, label)
