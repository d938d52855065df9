"""Tables of a cohort: manifests of every task, splits, tables of slides, lists of slides, truth of tiles."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from asmil.cohort.check import check_cohort
from asmil.cohort.manifest import load_cohort
from asmil.cohort.manifest_import import import_manifest
from asmil.cohort.splits import Splits, make_splits
from asmil.errors import AsmilError
from asmil.evaluation.localization.localize import read_skip_list
from asmil.evaluation.localization.tile_maps import MaskFrame, TileTruth
from asmil.slides.discovery import find_slides
from asmil.synthetic.bags import SyntheticConfig, write_synthetic
from tests.campaigns.excel_edits import write_xlsx
from tests.campaigns.kinds import Kind
from tests.extraction.small_slides import write_slide
from tests.training.small_task_cohorts import write_cohort

Task = Literal["classification", "survival", "regression", "multilabel"]


def _cohort(folder: Path, task: Task, suffix: str) -> None:
    write_cohort(folder, task, n_patients=16)
    table = pd.read_csv(folder / "cohort.csv", dtype=str).assign(mpp="0.25", site="here")
    table["features"] = [f"features/{slide}.h5" for slide in table["slide"]]
    _write(folder / f"cohort{suffix}", table)


def _write(path: Path, table: pd.DataFrame) -> None:
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif path.suffix == ".xlsx":
        write_xlsx(path, table)
    else:
        table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def _manifest(task: Task, suffix: str = ".csv") -> Kind:
    def make(folder: Path) -> None:
        _cohort(folder, task, suffix)

    def read(folder: Path) -> Any:
        cohort = load_cohort(folder / f"cohort{suffix}", None, kind=task)
        return cohort, make_splits(cohort, kind=task, seed=0).table

    form = suffix.removeprefix(".")
    return Kind(f"manifest {task} {form}", f"cohort{suffix}", form, make, read)


def _categories(folder: Path) -> None:
    _cohort(folder, "classification", ".csv")
    table = pd.read_csv(folder / "cohort.csv", dtype=str)
    table.astype("category").to_parquet(folder / "cohort.parquet", index=False)


def _wide(folder: Path) -> None:
    _cohort(folder, "multilabel", ".csv")
    table = pd.read_csv(folder / "cohort.csv", dtype=str)
    given = {name: [str(int(name in cell.split(";"))) for cell in table["label"]] for name in "ab"}
    given["a"][3] = given["b"][5] = ""
    table.drop(columns="label").assign(**given).to_csv(folder / "cohort.csv", index=False)


def _read_wide(folder: Path) -> Any:
    cohort = load_cohort(folder / "cohort.csv", None, kind="multilabel", columns={"labels": "a,b"})
    return cohort, make_splits(cohort, kind="multilabel", seed=0).table


def _imported(suffix: str) -> Kind:
    """A table of slides and one of patients, with the columns of the GDC; the one of patients is damaged."""

    def make(folder: Path) -> None:
        write_cohort(folder, "survival", n_patients=16)
        table = pd.read_csv(folder / "cohort.csv", dtype=str)
        table[["slide", "patient"]].assign(mpp="0.25").to_csv(folder / "slides.csv", index=False)
        table = table.drop_duplicates("patient")
        dead = table["event"] == "1"
        people = pd.DataFrame(
            {
                "patient": table["patient"],
                "vital_status": ["Dead" if one else "Alive" for one in dead],
                "days_to_death": table["time"].where(dead, "'--"),
                "days_to_last_follow_up": table["time"].where(~dead, "'--"),
                "age": "60",
            }
        )
        _write(folder / f"people{suffix}", people)

    def read(folder: Path) -> Any:
        found = import_manifest(folder / "slides.csv", folder / f"people{suffix}")
        return found, [[float(row[name]) for name in ("time", "mpp") if row[name]] for row in found.rows]

    form = suffix.removeprefix(".")
    return Kind(f"import {form}", f"people{suffix}", form, make, read)


def _read_check(task: Task, folder: Path) -> Any:
    report = check_cohort(folder / "cohort.csv", kind=task)
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
    frame = MaskFrame("007", np.zeros((1, 2), dtype=np.int64), 512.0, (20_000, 20_000), 0.25)
    return [truth.tumor(f"slide-{number:04d}", frame) for number in range(4)]


def _skip_list(folder: Path) -> None:
    (folder / "skip.txt").write_text("slide-1\nslide-2, twice\n# remark\nslide-3 # bad\n")


KINDS = (
    _manifest("classification"),
    _manifest("classification", ".parquet"),
    _manifest("classification", ".xlsx"),
    Kind(
        "manifest with categories",
        "cohort.parquet",
        "parquet",
        _categories,
        lambda folder: load_cohort(folder / "cohort.parquet", None),
    ),
    _manifest("survival"),
    _manifest("regression"),
    _manifest("multilabel"),
    Kind("manifest of wide labels", "cohort.csv", "csv", _wide, _read_wide),
    *map(_imported, (".csv", ".tsv", ".xlsx", ".parquet")),
    Kind(
        "manifest checked",
        "cohort.csv",
        "csv",
        lambda folder: _cohort(folder, "classification", ".csv"),
        partial(_read_check, "classification"),
    ),
    Kind(
        "manifest of survival checked",
        "cohort.csv",
        "csv",
        lambda folder: _cohort(folder, "survival", ".csv"),
        partial(_read_check, "survival"),
    ),
    Kind(
        "features checked",
        "features/s00.h5",
        "hdf5",
        lambda folder: _cohort(folder, "classification", ".csv"),
        partial(_read_check, "classification"),
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
