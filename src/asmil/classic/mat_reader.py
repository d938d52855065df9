"""Reads a MATLAB file into plain arrays, in a separate process: damaged files can crash SciPy's reader.

    python mat_reader.py FILE.mat ARRAYS.npz

It writes `features`, `bag` and `label`, or prints why the file cannot be used and exits with REFUSED. It imports
nothing of asmil, so that it starts quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

REFUSED = 3
NAMES = {"features": ("features",), "bag": ("bag", "bags", "bag_ids"), "label": ("label", "labels")}
FORMS = (
    "arrays features, bag (or bag_ids) and label (or labels); a cell array of bags x 2 with the instances and the "
    "label of each bag; or a PRTools dataset with data, nlab and ident.milbag"
)


class UnusableFile(Exception):
    """The file was read, but is not a benchmark set."""


def read_arrays(path: str) -> dict[str, Any]:
    """`features`, `bag` and `label` of a file of one of the three forms; a cell array or dataset may have any name."""
    loaded = scipy.io.loadmat(path)
    variables = {name: value for name, value in loaded.items() if not name.startswith("__")}
    arrays = {ours: variables[name] for ours, names in NAMES.items() for name in names if name in variables}
    if len(arrays) == len(NAMES):
        return {name: _dense(value) for name, value in arrays.items()}
    cells = [value for value in variables.values() if _is_cell_of_bags(value)]
    datasets = [value for value in variables.values() if {"data", "nlab"} <= set(value.dtype.names or ())]
    if len(cells) == 1:
        return _from_cells(cells[0])
    if len(datasets) == 1:
        return _from_prtools(_fields(datasets[0]))
    raise UnusableFile(f"it holds {', '.join(sorted(variables)) or 'nothing'}; accepted are: {FORMS}")


def main(path: str, out: str) -> int:
    """Read one file and write its arrays; every error is one line."""
    try:
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in read_arrays(path).items()}
        for name, values in arrays.items():
            if values.dtype.kind not in "fiubUS":
                raise UnusableFile(f"its {name} is an array of type {values.dtype}; accepted are: {FORMS}")
        np.savez(out, **arrays)
    except UnusableFile as error:
        print(error)
    except NotImplementedError:
        print("it is a version 7.3 .mat file; write it again with save(..., '-v7')")
    except Exception as error:  # noqa: BLE001 - SciPy raises many kinds of errors on damaged files
        print(f"it cannot be read as a .mat file ({' '.join(str(error).split())}); write it again with '-v7'")
    else:
        return 0
    return REFUSED


def _is_cell_of_bags(value: Any) -> bool:
    return value.dtype == object and value.ndim == 2 and value.shape[1] == 2 and len(value) > 0


def _from_cells(cells: Any) -> dict[str, Any]:
    """B x 2: instances and label. All columns of the instances are features: a label among them is a leak."""
    matrices = [_dense(matrix) for matrix in cells[:, 0]]
    widths = {matrix.shape[1] if matrix.ndim == 2 else 0 for matrix in matrices}
    if len(widths) > 1 or 0 in widths:
        raise UnusableFile(f"its bags have {sorted(widths)} columns; all need the same number of features")
    sizes = [len(matrix) for matrix in matrices]
    if 0 in sizes:
        raise UnusableFile(f"bag {sizes.index(0) + 1} has no instance; leave it out")
    labels = [_flat(label) for label in cells[:, 1]]
    if any(len(label) == 0 for label in labels):
        raise UnusableFile(f"a bag has no label; accepted are: {FORMS}")
    return {
        "features": np.concatenate(matrices),
        "bag": np.repeat(np.arange(len(sizes)), sizes),
        "label": np.repeat([label.max() for label in labels], sizes),
    }


def _from_prtools(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A PRTools dataset: `nlab` counts the rows of `lablist` from 1, and `ident.milbag` names bags."""
    ident = fields.get("ident")
    if ident is None or "milbag" not in (ident.dtype.names or ()):
        raise UnusableFile(f"its dataset has no ident.milbag, so the bags are unknown; accepted are: {FORMS}")
    class_number = _flat(fields["nlab"])
    if not set(class_number.tolist()) <= {1, 2}:
        raise UnusableFile("its nlab counts more than two classes; a benchmark here has two")
    return {
        "features": _dense(fields["data"]),
        "bag": np.array([str(name) for name in _flat(_fields(ident)["milbag"])]),
        "label": (class_number == _positive_class(fields.get("lablist"))).astype(np.int64),
    }


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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
