"""Benchmark sets from MATLAB files (version 7 and before)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
from scipy.io.matlab import MatReadError

from asmil.classic.bag_set import BagSet, make_bag_set
from asmil.classic.npz_file import from_arrays
from asmil.errors import AsmilError

NAMES = {"features": ("features",), "bag": ("bag", "bags", "bag_ids"), "label": ("label", "labels")}
FORMS = (
    "arrays features, bag (or bag_ids) and label (or labels); a cell array of bags x 2 with the instances and the "
    "label of each bag; or a PRTools dataset with data, nlab and ident.milbag"
)

_UNREADABLE = (MatReadError, ValueError, TypeError, KeyError, IndexError, EOFError, struct.error, zlib.error)


def read_mat(path: Path) -> BagSet:
    """A .mat file of one of the three forms in `FORMS`; a cell array or a dataset may have any name."""
    try:
        loaded = scipy.io.loadmat(path)
    except NotImplementedError:
        raise AsmilError(f"{path}: it is a version 7.3 .mat file; write it anew with save(..., '-v7')") from None
    except _UNREADABLE as error:
        raise AsmilError(f"{path}: it cannot be read as a .mat file ({error}); write it anew with '-v7'") from None
    variables = {name: value for name, value in loaded.items() if not name.startswith("__")}
    arrays = {ours: variables[name] for ours, names in NAMES.items() for name in names if name in variables}
    if len(arrays) == len(NAMES):
        return from_arrays(path, {name: _dense(value) for name, value in arrays.items()})
    cells = [value for value in variables.values() if _is_cell_of_bags(value)]
    datasets = [value for value in variables.values() if {"data", "nlab"} <= set(value.dtype.names or ())]
    if len(cells) == 1:
        return _from_cells(path, cells[0])
    if len(datasets) == 1:
        return _from_prtools(path, _fields(datasets[0]))
    raise AsmilError(f"{path}: it holds {', '.join(sorted(variables)) or 'nothing'}; accepted are: {FORMS}")


def _is_cell_of_bags(value: Any) -> bool:
    return value.dtype == object and value.ndim == 2 and value.shape[1] == 2 and len(value) > 0


def _from_cells(path: Path, cells: Any) -> BagSet:
    """B x 2: instances and label. All columns of the instances are features: a label among them is a leak."""
    matrices = [_dense(matrix) for matrix in cells[:, 0]]
    widths = {matrix.shape[1] if matrix.ndim == 2 else 0 for matrix in matrices}
    if len(widths) > 1 or 0 in widths:
        raise AsmilError(f"{path}: its bags have {sorted(widths)} columns; all need the same number of features")
    sizes = [len(matrix) for matrix in matrices]
    if 0 in sizes:
        raise AsmilError(f"{path}: bag {sizes.index(0) + 1} has no instance; leave it out")
    labels = [_flat(label) for label in cells[:, 1]]
    if any(len(label) == 0 for label in labels):
        raise AsmilError(f"{path}: a bag has no label; accepted are: {FORMS}")
    bag = np.repeat(np.arange(len(sizes)), sizes)
    label = np.repeat([label.max() for label in labels], sizes)
    return make_bag_set(path, np.concatenate(matrices), bag, label)


def _from_prtools(path: Path, fields: Mapping[str, Any]) -> BagSet:
    """A PRTools dataset: `nlab` counts the rows of `lablist` from 1, and `ident.milbag` names bags."""
    ident = fields.get("ident")
    if ident is None or "milbag" not in (ident.dtype.names or ()):
        raise AsmilError(f"{path}: its dataset has no ident.milbag, so the bags are unknown; accepted are: {FORMS}")
    class_number = _flat(fields["nlab"])
    if not set(class_number.tolist()) <= {1, 2}:
        raise AsmilError(f"{path}: its nlab counts more than two classes; a benchmark here has two")
    names = [str(name) for name in _flat(_fields(ident)["milbag"])]
    labels = class_number == _positive_class(fields.get("lablist"))
    return make_bag_set(path, _dense(fields["data"]), names, labels)


def _positive_class(lablist: Any) -> int:
    """1 or 2: the class that is called positive, by default the second."""
    rows = [] if lablist is None else [_text(row).strip().lower() for row in np.asarray(lablist).reshape(-1)]
    return rows.index("positive") + 1 if "positive" in rows else 2


def _text(value: Any) -> str:
    while isinstance(value, np.ndarray) and value.size:
        value = value.reshape(-1)[0]
    return str(value)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a 1 x 1 struct or object."""
    record = value.reshape(-1)[0]
    return {name: record[name] for name in value.dtype.names}


def _dense(value: Any) -> Any:
    return value.toarray() if scipy.sparse.issparse(value) else np.asarray(value)


def _flat(value: Any) -> Any:
    return _dense(value).reshape(-1)
