"""Pair the predictions of several runs, and compute their metrics under bootstrap resamples of patients.

Predictions are paired by slide and fold, never by order. Runs with different tasks, slides, folds, patients or targets
raise an error. All runs use the same resamples. The value of each seed under each of R resamples of patients is
computed once; resampling seeds then only selects among these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.rows import rows_of
from asmil.evaluation.run_evaluation import Request
from asmil.runs.run import Run, read_run
from asmil.tables.arrays import Floats
from asmil.tables.names import unique_names
from asmil.tables.time_units import UNKNOWN_UNIT
from asmil.tasks.base import Metric, PredictionFormat, Truth
from asmil.tasks.intervals import number_patients, under_draws

Integers = npt.NDArray[np.integer]
KEYS = ["fold", "slide"]


@dataclass(frozen=True)
class Rows:
    """The n rows on which all runs are evaluated: one slide (or patient) in the fold that evaluates it.

    truth: as returned by the task's `PredictionFormat.truth`
    """

    task: PredictionFormat
    slides: npt.NDArray[np.object_]
    patients: npt.NDArray[np.object_]
    folds: npt.NDArray[np.intp]
    truth: Truth

    @property
    def folds_overlap(self) -> bool:
        """Whether a slide is evaluated in several folds (repeated splits)."""
        return len(set(self.slides)) < len(self.slides)

    def by_fold(self) -> list[Integers]:
        """Row indices of every fold, in the order of the folds."""
        return [np.flatnonzero(self.folds == fold) for fold in np.unique(self.folds)]

    def by_slide(self, prediction: Floats) -> tuple[Rows, Floats]:
        """One row per slide: predictions (n x C) of folds that share a slide are averaged."""
        names, first, slide_index = np.unique(self.slides.astype(str), return_index=True, return_inverse=True)
        total = np.zeros((len(names), prediction.shape[1]))
        np.add.at(total, slide_index, prediction)
        joined = replace(
            self,
            slides=self.slides[first],
            patients=self.patients[first],
            folds=np.zeros(len(names), dtype=np.intp),
            truth=self.truth[first],
        )
        return joined, total / np.bincount(slide_index)[:, None]


@dataclass(frozen=True)
class ComparedRun:
    """A run with its predictions for these rows, S x n x C for S seeds."""

    run: Run
    name: str
    seeds: tuple[int, ...]
    predictions: Floats


@dataclass(frozen=True)
class PairedPredictions:
    """All runs with their predictions for the same rows.

    parts: for every metric, the groups of rows that are evaluated together: all rows, or each fold separately if folds
    share slides or their predictions are not comparable; folds in which the metric is undefined are left out
    """

    rows: Rows
    runs: Mapping[str, ComparedRun]
    metrics: tuple[Metric, ...]
    parts: Mapping[str, Sequence[Integers]]

    @property
    def n_patients(self) -> int:
        return len(set(self.rows.patients))

    def per_seed(self, run: ComparedRun, metric: Metric) -> Floats:
        """S values: the metric of every seed, averaged over its parts."""
        return np.asarray(_part_values(self.rows, run, metric, self.parts[metric.name]).mean(axis=0))

    def per_training(self, run: ComparedRun, metric: Metric) -> dict[tuple[int, int], float]:
        """The metric in every fold and seed; nan where undefined."""
        values = _part_values(self.rows, run, metric, self.rows.by_fold())
        folds = np.unique(self.rows.folds).tolist()
        return {
            (int(fold), seed): float(values[i, k]) for i, fold in enumerate(folds) for k, seed in enumerate(run.seeds)
        }

    def under(self, counts: Integers, runs: Sequence[ComparedRun]) -> dict[tuple[str, str], Floats]:
        """R x S values of every run and metric under R resamples; counts: R x P, how often each patient is drawn.

        If any value of a resample is undefined (for example because it contains a single class), all of them are nan.
        """
        patient = number_patients(self.rows.patients.tolist())

        def measure(drawn: Floats) -> dict[tuple[str, str], Floats]:
            weights = {name: [drawn[:, patient[part]] for part in parts] for name, parts in self.parts.items()}
            return {
                (run.name, metric.name): np.stack(
                    [self._mean_over_parts(metric, of_seed, weights[metric.name]) for of_seed in run.predictions],
                    axis=1,
                )
                for run in runs
                for metric in self.metrics
            }

        drawn = under_draws(measure, counts, len(patient))
        undefined = np.isnan(np.concatenate(list(drawn.values()), axis=1)).any(axis=1)
        return {key: np.where(undefined[:, None], np.nan, values) for key, values in drawn.items()}

    def _mean_over_parts(self, metric: Metric, prediction: Floats, weights: Sequence[Floats]) -> Floats:
        """R values from the R x n_k weights of every part."""
        values = [
            _measured(metric, self.rows.truth[part], prediction[part], weight)
            for part, weight in zip(self.parts[metric.name], weights, strict=True)
        ]
        return np.asarray(np.mean(values, axis=0))


def _part_values(rows: Rows, run: ComparedRun, metric: Metric, parts: Sequence[Integers]) -> Floats:
    """Parts x S: the metric of every seed in every part; nan where undefined."""
    return np.array(
        [
            [
                _measured(metric, rows.truth[part], of_seed[part], np.ones((1, len(part))))[0]
                for of_seed in run.predictions
            ]
            for part in parts
        ]
    )


def _measured(metric: Metric, truth: Truth, prediction: Floats, weights: Floats) -> Floats:
    """R values; nan for resamples without a patient of this part."""
    assert metric.function is not None
    drawn = weights.sum(axis=1) > 0
    values = np.full(len(weights), np.nan)
    values[drawn] = metric.function(truth, prediction, weights[drawn])
    return values


def _defined_parts(rows: Rows, run: ComparedRun, metric: Metric) -> list[Integers]:
    """The parts in which the metric is defined. This depends only on the truth, so any run will do."""
    joined = metric.joins_folds and not rows.folds_overlap
    parts: list[Integers] = [np.arange(len(rows.slides))] if joined else rows.by_fold()
    values = _part_values(rows, run, metric, parts)
    defined = [part for part, value in zip(parts, values, strict=True) if not np.isnan(value).any()]
    if not defined:
        raise AsmilError(
            f"{run.name}: {metric.title} is undefined, since all slides have the same outcome as {rows.slides[0]}; "
            "compare runs that were evaluated on slides with different outcomes"
        )
    return defined


def open_runs(runs: Sequence[Path | str], reference: Path | str | None, all_pairs: bool) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and an error message for each of the others; the reference must be readable."""
    if len(runs) < 2:
        raise AsmilError("a comparison needs at least two runs; use `asmil evaluate` for a single run")
    if reference is not None and all_pairs:
        raise AsmilError("give either a reference or all pairs, not both")
    known = [Path(run).resolve() for run in runs]
    twice = next((run for index, run in enumerate(runs) if known[index] in known[:index]), None)
    if twice is not None:
        raise AsmilError(f"{twice} is given twice; give every run once")
    needed = None if reference is None else Path(reference).resolve()
    if needed is not None and needed not in known:
        hint = did_you_mean(str(reference), map(str, runs))
        raise AsmilError(f"the reference {reference} is not among the runs: {hint}")
    opened, problems = [], []
    for run in runs:
        try:
            opened.append(read_run(run))
        except AsmilError as error:
            if Path(run).resolve() == needed:
                raise
            problems.append(str(error))
    if len(opened) < 2:
        left = f"; only {opened[0].path} is left, and a comparison needs two runs" if opened else ""
        raise AsmilError("; ".join(problems) + left)
    return opened, problems


def given_names(runs: Sequence[Path | str], names: Sequence[str], opened: Sequence[Run]) -> list[str]:
    """The names of the opened runs, of names that were given for all runs."""
    if len(names) != len(runs) or len(set(names)) < len(names) or not all(names):
        raise AsmilError(f"--names {','.join(names)}: give {len(runs)} different names, one per run, in their order")
    by_path = {Path(run).resolve(): name for run, name in zip(runs, names, strict=True)}
    return [by_path[run.path.resolve()] for run in opened]


def pair_runs(runs: Sequence[Run], asked: Request, names: Sequence[str] | None = None) -> PairedPredictions:
    """The rows of all runs and the predictions of each run; AsmilError if the runs do not match.

    names: of the runs; None: the names of their folders
    """
    names = names or unique_names([run.path for run in runs])
    tables = [_table(run, asked) for run in runs]
    _refuse_other_tasks(runs, names)
    rows, keys = _rows(runs[0], tables[0])
    compared = []
    for run, name, table in zip(runs, names, tables, strict=True):
        _refuse_other_slides(tables[0], table, names[0], name)
        _refuse_other_truth(tables[0], table, runs[0].format.truth_columns, (names[0], name))
        compared.append(_compared_run(run, name, table, keys, rows.task))
    metrics = rows.task.compared
    parts = {metric.name: _defined_parts(rows, compared[0], metric) for metric in metrics}
    return PairedPredictions(rows, {run.name: run for run in compared}, metrics, parts)


def pairs_of(paired: PairedPredictions, reference: Path | str | None, all_pairs: bool) -> list[tuple[str, str]]:
    """Pairs (run, reference): every other run with the reference, or every run with every earlier one."""
    names = list(paired.runs)
    if all_pairs:
        return [(run, earlier) for index, earlier in enumerate(names) for run in names[index + 1 :]]
    wanted = None if reference is None else Path(reference).resolve()
    chosen = next(
        (compared.name for compared in paired.runs.values() if compared.run.path.resolve() == wanted), names[0]
    )
    return [(run, chosen) for run in names if run != chosen]


def _refuse_other_tasks(runs: Sequence[Run], names: Sequence[str]) -> None:
    """All runs must have the task and the classes of the first run."""
    first, kind = runs[0], runs[0].kind
    for run, name in zip(runs[1:], names[1:], strict=True):
        if run.kind != kind:
            raise AsmilError(f"{name} is a {run.kind} run, but {names[0]} is a {kind} run; compare runs of one task")
        if set(run.classes) != set(first.classes):
            raise AsmilError(
                f"{name} has the classes {', '.join(run.classes)}, but {names[0]} has {', '.join(first.classes)}; "
                "compare runs with the same classes"
            )
    unit_of = {name: run.time_unit for run, name in zip(runs, names, strict=True) if run.time_unit != UNKNOWN_UNIT}
    for name, unit in unit_of.items():
        other, known = next(iter(unit_of.items()))
        if unit != known:
            raise AsmilError(
                f"the times of {name} are in {unit}, but those of {other} in {known}; train both with the same "
                "--time-unit, on the same times"
            )


def _refuse_other_slides(first: pd.DataFrame, other: pd.DataFrame, first_name: str, name: str) -> None:
    """Both tables of predictions must contain the same slides in the same folds."""
    known, given = (
        {str(slide): set(part) for slide, part in table.groupby("slide")["fold"]} for table in (first, other)
    )
    for here, there, has, lacks in ((known, given, first_name, name), (given, known, name, first_name)):
        missing = sorted(set(here) - set(there))
        if missing:
            raise AsmilError(
                f"{lacks} has no prediction for slide {missing[0]}, but {has} has one ({len(missing)} such slides); "
                "compare runs that were evaluated on the same slides"
            )
    for slide, folds in known.items():
        if folds != given[slide]:
            in_first, in_other = (" and ".join(map(str, sorted(numbers))) for numbers in (folds, given[slide]))
            raise AsmilError(
                f"{name} evaluates slide {slide} in fold {in_other}, but {first_name} in fold {in_first}; compare runs "
                "with the same splits"
            )


def _refuse_other_truth(
    first: pd.DataFrame, other: pd.DataFrame, columns: Sequence[str], names: tuple[str, str]
) -> None:
    """Both tables must have the same patient and target for every slide."""
    known, given = (table.drop_duplicates("slide").set_index("slide") for table in (first, other))
    for column in ("patient", *columns):
        if column not in given:
            raise AsmilError(f"{names[1]}: the predictions have no column {column}; train the run again")
        here, there = known[column], given[column].reindex(known.index)
        differs = np.flatnonzero(_differ(here, there))
        if len(differs):
            raise AsmilError(
                f"slide {known.index[differs[0]]} has the {column} {there.iloc[differs[0]]} in {names[1]} and "
                f"{here.iloc[differs[0]]} in {names[0]}; compare runs of the same cohort"
            )


def _differ(known: pd.Series[Any], given: pd.Series[Any]) -> npt.NDArray[np.bool_]:
    if pd.api.types.is_numeric_dtype(known) and pd.api.types.is_numeric_dtype(given):
        here, there = (part.to_numpy(dtype=np.float64) for part in (known, given))
        return np.asarray(~np.isclose(here, there, rtol=1e-9, atol=0, equal_nan=True))
    return np.asarray(known.astype(str).to_numpy() != given.astype(str).to_numpy())


def _table(run: Run, asked: Request) -> pd.DataFrame:
    table = rows_of(run, asked.role, asked.unit)
    table = table.assign(slide=table["slide"].astype(str), patient=table["patient"].astype(str))
    return table.sort_values(["seed", *KEYS], ignore_index=True)


def _rows(run: Run, table: pd.DataFrame) -> tuple[Rows, pd.MultiIndex]:
    first = table.drop_duplicates(KEYS).sort_values(KEYS, ignore_index=True)
    rows = Rows(
        task=run.format,
        slides=first["slide"].to_numpy(dtype=object),
        patients=first["patient"].to_numpy(dtype=object),
        folds=first["fold"].to_numpy(dtype=np.intp),
        truth=run.format.truth(first),
    )
    return rows, pd.MultiIndex.from_frame(first[KEYS])


def _compared_run(run: Run, name: str, table: pd.DataFrame, keys: pd.MultiIndex, task: PredictionFormat) -> ComparedRun:
    columns = list(task.prediction_columns)
    seeds, predictions = [], []
    for seed, part in table.groupby("seed", sort=True):
        aligned = part.set_index(KEYS)[columns].reindex(keys)
        lacking = np.flatnonzero(aligned.isna().any(axis=1))
        if len(lacking):
            fold, slide = keys[lacking[0]]
            raise AsmilError(
                f"{name}: seed {seed} has no prediction for slide {slide} in fold {fold}, but another seed has one; "
                "resume the run with the same `asmil train` command"
            )
        seeds.append(int(str(seed)))
        predictions.append(aligned.to_numpy(dtype=np.float64))
    return ComparedRun(run, name, tuple(seeds), np.stack(predictions))
