"""The predictions of compared runs on the rows they share, and their metrics under draws of patients.

All runs see the same draws. The value of a seed under R draws of patients is computed once; drawing seeds then only
chooses among these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import number_patients, under_draws
from asmil.evaluation.run import Run
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.prediction_format import Metric, PredictionFormat, Truth

Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Rows:
    """What all runs are evaluated on: n rows, each a slide (or a patient) in the fold that evaluates it.

    truth: as the task's `PredictionFormat.truth` gives it
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
        """The places of the rows of every fold, in order of the folds."""
        return [np.flatnonzero(self.folds == fold) for fold in np.unique(self.folds)]

    def by_slide(self, prediction: Floats) -> tuple[Rows, Floats]:
        """One row per slide: predictions (n x C) of folds that share a slide are averaged."""
        names, first, place = np.unique(self.slides.astype(str), return_index=True, return_inverse=True)
        total = np.zeros((len(names), prediction.shape[1]))
        np.add.at(total, place, prediction)
        joined = replace(
            self,
            slides=self.slides[first],
            patients=self.patients[first],
            folds=np.zeros(len(names), dtype=np.intp),
            truth=self.truth[first],
        )
        return joined, total / np.bincount(place)[:, None]


@dataclass(frozen=True)
class ComparedRun:
    """A run on those rows: predictions are S x n x C for S seeds."""

    run: Run
    name: str
    seeds: tuple[int, ...]
    predictions: Floats


@dataclass(frozen=True)
class PairedPredictions:
    """All runs on the rows they share.

    parts: for every metric the groups of rows that are evaluated together: all rows, or fold by fold where folds share
    slides or their models must not be ranked together; folds without a value are left out
    """

    rows: Rows
    runs: Mapping[str, ComparedRun]
    metrics: tuple[Metric, ...]
    parts: Mapping[str, Sequence[Integers]]

    @property
    def n_patients(self) -> int:
        """How many patients there are to draw."""
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
        """R x S values of every run and metric when patients are drawn as `counts` (R x P) says.

        A draw in which any of them is undefined, such as one of a single class, is nan in all.
        """
        patient = number_patients(self.rows.patients.tolist())

        def measure(drawn: Floats) -> dict[tuple[str, str], Floats]:
            weights = {name: [drawn[:, patient[part]] for part in parts] for name, parts in self.parts.items()}
            return {
                (run.name, metric.name): np.stack(
                    [self._mean_over_parts(metric, one, weights[metric.name]) for one in run.predictions], axis=1
                )
                for run in runs
                for metric in self.metrics
            }

        found = under_draws(measure, counts, len(patient))
        undefined = np.isnan(np.concatenate(list(found.values()), axis=1)).any(axis=1)
        return {key: np.where(undefined[:, None], np.nan, values) for key, values in found.items()}

    def _mean_over_parts(self, metric: Metric, prediction: Floats, weights: Sequence[Floats]) -> Floats:
        """R values from the R x n_k weights of every part."""
        values = [
            _measured(metric, self.rows.truth[part], prediction[part], weight)
            for part, weight in zip(self.parts[metric.name], weights, strict=True)
        ]
        return np.asarray(np.mean(values, axis=0))


def pair_predictions(rows: Rows, runs: Sequence[ComparedRun]) -> PairedPredictions:
    """The runs with the metrics of their task; AsmilError if one is undefined."""
    metrics = rows.task.compared
    parts = {metric.name: _defined_parts(rows, runs[0], metric) for metric in metrics}
    return PairedPredictions(rows, {run.name: run for run in runs}, metrics, parts)


def _defined_parts(rows: Rows, run: ComparedRun, metric: Metric) -> list[Integers]:
    """The parts that have a value. That depends on the truth alone, so one run answers for all."""
    joined = metric.joins_folds and not rows.folds_overlap
    parts: list[Integers] = [np.arange(len(rows.slides))] if joined else rows.by_fold()
    values = _part_values(rows, run, metric, parts)
    defined = [part for part, value in zip(parts, values, strict=True) if not np.isnan(value).any()]
    if not defined:
        raise AsmilError(
            f"{run.name}: {metric.title} is undefined, since all outcomes are alike (as that of slide "
            f"{rows.slides[0]}); compare runs that were evaluated on slides with different outcomes"
        )
    return defined


def _part_values(rows: Rows, run: ComparedRun, metric: Metric, parts: Sequence[Integers]) -> Floats:
    """Parts x S: the metric of every seed in every part; nan where undefined."""
    return np.array(
        [
            [
                _measured(metric, rows.truth[part], prediction[part], np.ones((1, len(part))))[0]
                for prediction in run.predictions
            ]
            for part in parts
        ]
    )


def _measured(metric: Metric, truth: Truth, prediction: Floats, weights: Floats) -> Floats:
    """R values; nan where none of the part's patients was drawn."""
    assert metric.function is not None
    drawn = weights.sum(axis=1) > 0
    found = np.full(len(weights), np.nan)
    found[drawn] = metric.function(truth, prediction, weights[drawn])
    return found
