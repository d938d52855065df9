"""Tables of a cohort: manifests of every task, splits, tables of slides, lists of slides, truth of tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pandas as pd

from asmil.cohort.check import check_cohort
from asmil.cohort.manifest import load_cohort
from asmil.cohort.splits import Splits, make_splits
from asmil.cohort.synthetic import SyntheticConfig, write_synthetic
from asmil.errors import AsmilError
from asmil.evaluation.localization.localize import read_skip_list
from asmil.evaluation.localization.tile_maps import Frame
from asmil.evaluation.localization.truth import TileTruth
from asmil.slides.discovery import find_slides
from tests.campaigns.kinds import Kind
from tests.extraction.small_slides import write_slide
from tests.training.small_task_cohorts import write_cohort

Task = Literal["classification", "survival", "regression", "multilabel"]


def _cohort(folder: Path, task: Task, suffix: str) -> None:
    write_cohort(folder, task, n_patients=16)
    table = pd.read_csv(folder / "cohort.csv", dtype=str).assign(mpp="0.25", site="here")
    table["features"] = [f"features/{slide}.h5" for slide in table["slide"]]
    if suffix == ".parquet":
        table.to_parquet(folder / "cohort.parquet", index=False)
    else:
        table.to_csv(folder / "cohort.csv", index=False)


def _manifest(task: Task, suffix: str = ".csv") -> Kind:
    def make(folder: Path) -> None:
        _cohort(folder, task, suffix)

    def read(folder: Path) -> Any:
        cohort = load_cohort(folder / f"cohort{suffix}", None, kind=task)
        return cohort, make_splits(cohort, kind=task, seed=0).table

    form = "parquet" if suffix == ".parquet" else "csv"
    return Kind(f"manifest {task} {form}", f"cohort{suffix}", form, make, read)


def _read_check(folder: Path) -> Any:
    report = check_cohort(folder / "cohort.csv", kind="classification")
    if report.errors:
        raise AsmilError("\n".join(map(str, report.errors)))
    return report.problems, report.summary


def _splits(folder: Path) -> None:
    manifest = write_cohort(folder, "classification", split=False)
    make_splits(load_cohort(manifest, None, kind="classification"), folds=2, seed=0).save(folder / "splits.csv")


def _read_splits(folder: Path) -> Any:
    found = Splits.load(folder / "splits.csv")
    return found.table, [found.slides(fold, "train") for fold in range(found.n_folds)]


def _slide_table(suffix: str) -> Kind:
    def make(folder: Path) -> None:
        write_slide(folder / "a.tif", 128)
        table = pd.DataFrame({"slide": ["007", "b"], "image": ["a.tif", "a.tif"], "mpp": ["0.25", "0.5"]})
        if suffix == ".parquet":
            table.to_parquet(folder / "slides.parquet", index=False)
        else:
            table.to_csv(folder / "slides.csv", index=False)

    form = "parquet" if suffix == ".parquet" else "csv"
    file = f"slides{suffix}"
    return Kind(f"table of slides {form}", file, form, make, lambda folder: find_slides(folder / file))


def _truth(folder: Path) -> None:
    write_synthetic(folder, SyntheticConfig(slides=4, width=16, tiles_min=20, tiles_max=24, witness_min=0.2, seed=1))


def _read_truth(folder: Path) -> Any:
    truth = TileTruth(folder / "tile_truth.parquet")
    frame = Frame(512.0, (20_000, 20_000), True, 0.25, 32)
    return [truth.tumor(f"slide-{number:04d}", frame) for number in range(4)]


def _skip_list(folder: Path) -> None:
    (folder / "skip.txt").write_text("slide-1\nslide-2, twice\n# remark\nslide-3 # bad\n")


KINDS = (
    _manifest("classification"),
    _manifest("classification", ".parquet"),
    _manifest("survival"),
    _manifest("regression"),
    _manifest("multilabel"),
    Kind(
        "manifest checked",
        "cohort.csv",
        "csv",
        lambda folder: _cohort(folder, "classification", ".csv"),
        _read_check,
    ),
    Kind(
        "features checked",
        "features/s00.h5",
        "hdf5",
        lambda folder: _cohort(folder, "classification", ".csv"),
        _read_check,
    ),
    Kind("splits", "splits.csv", "csv", _splits, _read_splits),
    _slide_table(".csv"),
    _slide_table(".parquet"),
    Kind("truth of tiles", "tile_truth.parquet", "parquet", _truth, _read_truth),
    Kind(
        "skip list",
        "skip.txt",
        "text",
        _skip_list,
        lambda folder: read_skip_list(folder / "skip.txt"),
    ),
)
