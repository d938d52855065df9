"""Small benchmark sets in every form, and the results that a benchmark keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from asmil.classic.jobs import make_jobs, run_jobs
from asmil.classic.reading import read_set
from asmil.classic.settings import contenders
from asmil.engine import InlineEngine
from tests.campaigns.array_edits import save_mat
from tests.campaigns.contents import Aside
from tests.campaigns.kinds import Kind


def _arrays() -> tuple[Any, Any, Any]:
    """Features, the bag of every instance, and the label of every bag."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 5, 16)
    bag = np.repeat(np.arange(16), sizes)
    label = np.arange(16) % 2
    return draw.normal(size=(len(bag), 4)).round(3) + 0.5 * label[bag][:, None], bag, label


def write_npz(path: Path) -> None:
    """A set as a NumPy archive."""
    features, bag, label = _arrays()
    np.savez(path, features=features, bag=bag, label=label)


def _mat_arrays(path: Path) -> None:
    features, bag, label = _arrays()
    save_mat(path, {"features": features, "bag_ids": bag + 1, "labels": label[bag]})


def _mat_cells(path: Path) -> None:
    features, bag, label = _arrays()
    cells = np.empty((16, 2), dtype=object)
    for number in range(16):
        cells[number] = [features[bag == number], float(label[number])]
    save_mat(path, {"data": cells})


def _mat_dataset(path: Path) -> None:
    features, bag, label = _arrays()
    dataset = {"data": features, "nlab": (label[bag] + 1)[:, None], "ident": {"milbag": (bag + 1)[:, None]}}
    save_mat(path, {"x": dataset})


def _csv(path: Path) -> None:
    features, bag, label = _arrays()
    header = ",".join(["bag", "label", *(f"f{number}" for number in range(4))])
    rows = [f"{b},{label[b]},{','.join(map(str, row))}" for b, row in zip(bag, features.round(3), strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")


def _uci(path: Path) -> None:
    features, bag, label = _arrays()
    rows = [
        f"molecule-{b},conformation-{n},{','.join(map(str, row))},{label[b]}."
        for n, (b, row) in enumerate(zip(bag, features.round(3), strict=True))
    ]
    path.write_text("\n".join(rows) + "\n")


def _svmlight(path: Path) -> None:
    features, bag, label = _arrays()
    rows = [
        f"{n}:{b}:{2 * label[b] - 1} " + " ".join(f"{place + 1}:{value}" for place, value in enumerate(row))
        for n, (b, row) in enumerate(zip(bag, features.round(3), strict=True))
    ]
    path.write_text("\n".join(rows) + "\n")


def _kind(name: str, file: str, form: str, write: Callable[[Path], None]) -> Kind:
    return Kind(f"set {name}", file, form, lambda folder: write(folder / file), lambda folder: read_set(folder / file))


def _results(folder: Path) -> Any:
    """A benchmark that was begun before: what it kept is read, the rest is done."""
    if not (folder / "s7.npz").exists():
        write_npz(folder / "s7.npz")
    sets = [read_set(folder / "s7.npz")]
    jobs = make_jobs(sets, contenders(["bag_forest"], ["paper"], {}), [0], 2, folder)
    found = list(run_jobs(jobs, {one.name: one for one in sets}, InlineEngine()))
    return Aside([(one.result or {}).get("rules") for one in found]), [one.error for one in found]


def _make_results(folder: Path) -> None:
    with _no_time():
        _results(folder)


def _no_time() -> Any:
    from unittest.mock import patch

    return patch("time.perf_counter", return_value=0.0)


KINDS = (
    _kind("npz", "s7.npz", "npz", write_npz),
    _kind("mat arrays", "s7.mat", "mat", _mat_arrays),
    _kind("mat cells", "s7.mat", "bytes", _mat_cells),
    _kind("mat dataset", "s7.mat", "bytes", _mat_dataset),
    _kind("csv", "s7.csv", "csv", _csv),
    _kind("uci", "s7.data", "text", _uci),
    _kind("svmlight", "s7.txt", "text", _svmlight),
    Kind("results of a benchmark", "jobs/s7-bag_forest-seed0.json", "json", _make_results, _results, True),
)
