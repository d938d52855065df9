"""Cohorts: check, plan, import, pack and make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from asmil.api.inputs import PathLike, as_path, names, warn
from asmil.console import progress_bar
from asmil.errors import AsmilError

if TYPE_CHECKING:
    from asmil.attention.affine import CohortDependence
    from asmil.cohort.check import CheckReport
    from asmil.cohort.manifest_import import ImportedManifest
    from asmil.cohort.pack.packing import PackReport
    from asmil.datasets import DatasetReport
    from asmil.synthetic.bags.outcomes import SyntheticTask
    from asmil.tables.time_units import TimeUnit
    from asmil.tasks.base import TaskKind
    from asmil.training.planning import TrainingPlan


def check(
    cohort: PathLike,
    *,
    features: PathLike | None = None,
    folds: int | None = None,
    task: TaskKind = "classification",
    columns: Mapping[str, str] | None = None,
    quick: bool = False,
    item_timeout: float | None = None,
    progress: bool = True,
) -> CheckReport:
    """Check a cohort before training, or the files of a run: all problems at once.

    cohort: the manifest (CSV, Excel or Parquet), or a run folder, for which the other parameters have no meaning
    features, columns: as for `load_cohort`
    folds: also check whether the cohort can be split into this many folds
    quick: read only the headers of the feature files
    item_timeout: leave out, and report, a feature file that takes longer than this many seconds; 0: no limit
    """
    from asmil.cohort.check import CheckReport, check_cohort
    from asmil.cohort.problems import Problem
    from asmil.runs.run import Run
    from asmil.runs.stored_labels import label_changes
    from asmil.runs.verification import verify_run

    if not (Path(cohort) / "config.yaml").is_file():
        with progress_bar("reading slides", not progress) as show:
            return check_cohort(cohort, features, folds, not quick, show, task, item_timeout, columns)
    files = list(verify_run(cohort))
    problems = [Problem("error", str(path), str(error)) for path, error in files if error is not None]
    changes = None if problems else label_changes(Run(cohort))
    if changes is not None:
        what = changes.sentence("its models and metrics use those of the training")
        problems.append(Problem("warning", str(cohort), what))
    return CheckReport(tuple(problems), None, files=tuple(path for path, _ in files))


def plan(
    cohort: PathLike,
    *,
    out: PathLike = "run.yaml",
    run: PathLike | None = None,
    features: PathLike | None = None,
    columns: Mapping[str, str] | None = None,
    task: TaskKind = "classification",
    time_unit: TimeUnit | None = None,
    item_timeout: float | None = None,
    force: bool = False,
) -> TrainingPlan:
    """Look at a cohort and write a settings file for `train`, with the reason for each setting.

    cohort, features, columns, task, time_unit: as for `train`
    out: the settings file; run: the run folder that it names, by default runs/METHOD
    item_timeout: refuse a feature file that takes longer than this many seconds
    force: replace the file if it exists
    """
    import os

    from asmil.cohort.consistency import refuse_mixed
    from asmil.cohort.inspection import headers_of
    from asmil.cohort.manifest import load_cohort
    from asmil.files import write_text
    from asmil.training.planning import plan_text, plan_training

    out = Path(out)
    if out.exists() and not force:
        raise AsmilError(f"{out} exists; give another --out, or --force to replace it")
    read = load_cohort(cohort, features, task, columns)
    infos = headers_of(read.slides, item_timeout)
    refuse_mixed(infos)
    planned = plan_training(read, infos, task, time_unit)

    def in_file(path: PathLike) -> str:
        return os.path.relpath(Path(path).absolute(), out.absolute().parent)

    text = plan_text(
        planned,
        str(out),
        in_file(cohort),
        f"runs/{planned.config.method}" if run is None else in_file(run),
        None if features is None else in_file(features),
        ",".join(f"{name}={column}" for name, column in columns.items()) if columns else None,
    )
    write_text(out, text)
    return replace(planned, facts=(*read.notes, *planned.facts))


def init(
    file: PathLike = "run.yaml",
    *,
    cohort: str = "cohort.csv",
    out: str | None = None,
    method: str = "asmil",
    preset: str = "paper",
    force: bool = False,
) -> Path:
    """Write a settings file for `train`, with every setting, its default and its meaning.

    cohort, out: the manifest and the run folder (default: runs/METHOD), relative to the file
    force: replace the file if it exists
    """
    from asmil.files import write_text
    from asmil.runs.settings_file import commented_settings

    file = Path(file)
    if file.exists() and not force:
        raise AsmilError(f"{file} exists; give another name, or --force to replace it")
    write_text(file, commented_settings(str(file), cohort, out or f"runs/{method}", method, preset))
    return file


def import_manifest(
    table: PathLike,
    out: PathLike = "cohort.csv",
    *,
    columns: Mapping[str, str] | None = None,
    patients: PathLike | None = None,
    sheet: str | None = None,
    patients_sheet: str | None = None,
    drop_missing: bool = False,
    force: bool = False,
) -> ImportedManifest:
    """Write a manifest from the tables of CLAM, STAMP, TCGA, MIL_BASELINE or a spreadsheet.

    table: a table of slides; patients: a table of patients with their outcomes, joined by the column `patient`
    out: the manifest to write; `force` replaces one that exists
    columns: which columns to read, e.g. {"label": "isMSIH"}
    sheet, patients_sheet: the sheets of Excel files with several
    drop_missing: leave out slides without an outcome
    """
    from asmil.cohort.manifest_import import import_manifest as read_tables

    table, out, patients = Path(table), Path(out), as_path(patients)
    if out.exists() and any(path is not None and path.exists() and out.samefile(path) for path in (table, patients)):
        raise AsmilError(f"--out {out}: this is the table that is read; give another file")
    if out.exists() and not force:
        raise AsmilError(f"{out} exists; give another --out, or --force to replace it")
    manifest = read_tables(table, patients, columns, drop_missing, sheet, patients_sheet)
    manifest.write(out)
    return manifest


def pack(
    source: PathLike,
    out: PathLike,
    *,
    features: PathLike | None = None,
    dtype: Literal["float16", "float32"] | None = None,
    columns: Mapping[str, str] | None = None,
    item_timeout: float | None = None,
    again: bool = False,
    progress: bool = True,
) -> PackReport:
    """Copy the features of all slides into one pack, a folder that is read many times faster.

    source: a folder of feature files, a cohort file, a pack, or a manifest
    out: the pack; an existing one is completed
    features, columns: for a manifest, as for `load_cohort`
    dtype: how the features are stored; default: as in the existing pack, float16 in a new one
    again: pack slides again whose features have changed, instead of refusing

    Slides that could not be packed are in `problems` of the result.
    """
    from asmil.cohort.manifest import cohort_from_features, read_manifest
    from asmil.cohort.pack.packing import pack_features
    from asmil.settings.made_from import DoneBefore
    from asmil.tables.text_table import is_table

    source = Path(source)
    if is_table(source) and not source.is_dir():
        cohort, problems, _ = read_manifest(source, features, kind=None, columns=columns)
        warn(*(f"{source}: {note}" for note in cohort.notes))
    else:
        for name, value in (("features", features), ("columns", columns)):
            if value is not None:
                raise AsmilError(f"--{name} {value}: it goes with a manifest, and {source} is not one; leave it out")
        cohort, problems = cohort_from_features(source), []
    with progress_bar("packing", not progress) as show:
        report = pack_features(list(cohort.slides), Path(out), dtype, show, item_timeout, DoneBefore(again))
    return replace(report, problems=(*problems, *report.problems))


def affine(
    cohort: PathLike,
    *,
    features: PathLike | None = None,
    deduplicate: bool = False,
    out: PathLike | None = None,
    progress: bool = True,
) -> CohortDependence:
    """Count the slides whose attention could change without changing the bag feature; see docs/affine.md.

    cohort: the manifest; labels are not needed
    deduplicate: also count without duplicate tiles; reads all features
    out: a CSV file to write, one row per slide
    """
    import pandas as pd

    from asmil.attention.affine import cohort_dependence
    from asmil.files import replacing

    with progress_bar("slides", not progress) as show:
        dependence = cohort_dependence(cohort, features, deduplicate, progress=show)
    if out is not None and dependence.slides:
        with replacing(Path(out)) as partial:
            pd.DataFrame([slide.row() for slide in dependence.slides]).convert_dtypes().to_csv(partial, index=False)
    return dependence


def make_dataset(
    name: str,
    source: PathLike,
    out: PathLike | None = None,
    *,
    only: str | Sequence[str] = (),
    unverified: bool = False,
    again: bool = False,
    progress: bool = True,
) -> DatasetReport:
    """Turn the downloaded files of a public data set into cohorts; see docs/datasets.md.

    name: as `asmil datasets` lists them
    source: the folder with the files, which are found by name anywhere in it
    out: a folder in which every cohort gets its own; default: NAME
    only: some of the cohorts
    unverified: also use files that differ from the published ones
    again: replace cohorts that were made from other files, instead of refusing

    Cohorts that could not be made are in `failures` of the result.
    """
    from asmil.datasets import find_dataset, make_cohorts

    dataset = find_dataset(name)
    with progress_bar("slides", not progress) as show:
        return make_cohorts(dataset, Path(source), Path(out or name), names(only), unverified, again, show)


def synthetic_cohort(
    folder: PathLike,
    *,
    task: SyntheticTask = "classification",
    censored: float = 0.5,
    again: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Path:
    """Make a synthetic cohort of features and return its manifest; see docs/synthetic.md.

    task: classification, survival, regression (share of lesion tiles) or multilabel
    censored: expected share of censored patients, for survival
    again: replace a cohort of other settings, instead of refusing
    settings: `slides`, `seed`, `classes`, `width`, `difficulty`, `tiles_min`, `tiles_max`, `witness_min`,
        `witness_max`, `sites`, `site_bias`
    """
    from typing import get_args

    from asmil.errors import did_you_mean
    from asmil.settings.config import parse_settings
    from asmil.synthetic.bags import SurvivalConfig, SyntheticConfig, write_synthetic
    from asmil.synthetic.bags.outcomes import SyntheticTask

    if task not in get_args(SyntheticTask):
        raise AsmilError(f"--task {task}: {did_you_mean(task, get_args(SyntheticTask))}")
    config = parse_settings(SyntheticConfig, settings)
    survival = parse_settings(SurvivalConfig, {"censored": censored})
    with progress_bar("slides", not progress) as show:
        return write_synthetic(folder, config, show, task, survival, again)


def transplants(
    folder: PathLike,
    background: PathLike,
    witnesses_from: PathLike,
    *,
    again: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Path:
    """Make bags of real feature vectors with known witnesses and return their manifest; see docs/synthetic.md.

    background, witnesses_from: manifests of two cohorts with features of one encoder, and with sites
    again: replace a cohort of other settings, instead of refusing
    settings: `slides`, `seed`, `tiles_min`, `tiles_max`, `witnesses`, `prevalence`, `label_noise`, `site_bias`
    """
    from asmil.settings.config import parse_settings
    from asmil.synthetic.transplants import TransplantConfig, write_transplants

    config = parse_settings(TransplantConfig, settings)
    with progress_bar("bags", not progress) as show:
        return write_transplants(folder, background, witnesses_from, config, show, again)


def synthetic_slides(
    folder: PathLike, *, workers: int | None = None, again: bool = False, progress: bool = True, **settings: Any
) -> Path:
    """Make slides that look like H&E, with annotated tumor, and return their manifest; see docs/synthetic_slides.md.

    workers: number of processes; default: one per core
    again: replace slides of other settings, instead of refusing
    settings: `slides`, `seed`, `mpp`, `side_mm_min`, `side_mm_max`, `tumor`, `micro`, `sites`, `pen`
    """
    from asmil.settings.config import parse_settings
    from asmil.synthetic.slides import SyntheticSlidesConfig, write_synthetic_slides

    config = parse_settings(SyntheticSlidesConfig, settings)
    with progress_bar("slides", not progress) as show:
        return write_synthetic_slides(folder, config, show, workers, again)
