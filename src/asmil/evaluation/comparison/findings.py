"""The results of a comparison, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.evaluation.comparison.pairing import PairedPredictions
from asmil.evaluation.run_evaluation import PART_TITLES, Role
from asmil.reporting import Estimate, Interval
from asmil.reporting.formats import ROUNDED, format_count, format_signed
from asmil.reporting.notebook import Displayed
from asmil.tasks.base import Metric, PredictionFormat


@dataclass(frozen=True)
class RunScores:
    """One run of the comparison: the mean of each metric over seeds, with its 95 % patient-level interval.

    seconds: of all its trainings; None if they were not recorded
    """

    name: str
    path: str
    method: str
    preset: str
    seeds: tuple[int, ...]
    metrics: Mapping[str, Estimate]
    seconds: float | None = None


@dataclass(frozen=True)
class ClassAuc:
    """DeLong's test of one class against the rest; `p_holm`: Holm over the classes of this pair."""

    name: str
    auc: float
    auc_reference: float
    difference: float
    interval: Interval
    z: float
    p: float
    p_holm: float = math.nan


@dataclass(frozen=True)
class EnsembleTest:
    """The difference of the seed ensembles of two runs, and its test; if p is nan, `reason` explains why.

    estimate: run minus reference, with the bootstrap over patients
    p_holm: adjusted over all differences of ensembles of the comparison
    """

    test: str
    value: float
    value_reference: float
    estimate: Estimate
    p: float
    classes: tuple[ClassAuc, ...] = ()
    reason: str = ""
    p_holm: float = math.nan

    @property
    def difference(self) -> float:
        """Run minus reference."""
        return self.estimate.value


@dataclass(frozen=True)
class FoldTest:
    """The mean difference over folds and its corrected resampled t-test; if t and p are nan, `reason` explains why."""

    differences: tuple[float, ...]
    estimate: Estimate
    n_train: float
    n_test: float
    t: float
    df: int
    p: float
    reason: str = ""


@dataclass(frozen=True)
class SeedTests:
    """One p-value per pair of seeds, and their combination by a rule that allows for dependence."""

    seeds: tuple[tuple[int, int], ...]
    p: tuple[float, ...]
    rule: str
    p_combined: float


@dataclass(frozen=True)
class Difference:
    """Run minus reference in one metric.

    estimate, sd, p: difference of the means over seeds, with the bootstrap over seeds and patients
    p_holm: adjusted over all such differences of the comparison
    ensemble, folds, per_seed: other quantities, each with its own estimate and p-value
    """

    run: str
    reference: str
    metric: Metric
    estimate: Estimate
    sd: float
    p: float
    ensemble: EnsembleTest | None = None
    folds: FoldTest | None = None
    per_seed: SeedTests | None = None
    p_holm: float = math.nan

    @property
    def value(self) -> float:
        """The difference."""
        return self.estimate.value

    @property
    def interval(self) -> Interval:
        """The interval of the difference."""
        return self.estimate.interval

    @property
    def opposite(self) -> dict[str, float]:
        """Other quantities whose difference has the opposite sign, by name; not if one of them rounds to 0."""
        others = {"seed ensembles": self.ensemble, "means over folds": self.folds}
        values = {name: quantity.estimate.value for name, quantity in others.items() if quantity is not None}
        return {
            name: value
            for name, value in values.items()
            if value * self.value < 0 and min(abs(value), abs(self.value)) >= ROUNDED
        }

    @property
    def opposite_words(self) -> str:
        """The differences with opposite signs as a phrase; empty if there are none."""
        others = ", ".join(f"{name} {format_signed(value)}" for name, value in self.opposite.items())
        pair = f"{self.run} compared with {self.reference} in {self.metric.title}"
        return f"{pair}: means over seeds {format_signed(self.value)}, {others}" if others else ""

    @property
    def classes(self) -> tuple[ClassAuc, ...]:
        """DeLong's tests of single classes, if there are more than two classes."""
        return self.ensemble.classes if self.ensemble is not None and len(self.ensemble.classes) > 1 else ()


@dataclass(frozen=True)
class Comparison(Displayed):
    """Runs compared on the same patients, and the differences between them.

    reference: the run that all others are compared with; None if all pairs are compared
    family, ensemble_family: numbers of p-values that Holm's correction covers: of means over seeds, of ensembles
    problems: runs that could not be read, one sentence each; they are not among the runs
    paired: the predictions behind the numbers
    """

    task: PredictionFormat
    role: Role
    unit: UnitKind
    metrics: tuple[Metric, ...]
    runs: tuple[RunScores, ...]
    differences: tuple[Difference, ...]
    reference: str | None
    n_slides: int
    n_patients: int
    n_folds: int
    folds_joined: bool
    resamples: int
    skipped: int
    bootstrap_seed: int
    family: int
    ensemble_family: int
    paired: PairedPredictions = field(repr=False)
    alarms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """One row per run and metric: value, limits of the 95 % interval, and standard deviation over seeds."""
        rows = [
            {"run": run.name, "metric": name, **metric.with_sd()}
            for run in self.runs
            for name, metric in run.metrics.items()
        ]
        return pd.DataFrame(rows).set_index(["run", "metric"])

    @property
    def differences_table(self) -> pd.DataFrame:
        """One row per pair of runs and metric: the difference, the limits of its 95 % interval, and its p-values."""
        keys = ["run", "reference", "metric"]
        rows = [
            (row.run, row.reference, row.metric.name, row.value, *row.interval, row.p, row.p_holm)
            for row in self.differences
        ]
        return pd.DataFrame(rows, columns=[*keys, "difference", "low", "high", "p", "p_holm"]).set_index(keys)

    def display_parts(self) -> tuple[str, list[pd.DataFrame], list[str]]:
        """The title, the tables and the warnings, as they are shown in a notebook."""
        patients = format_count(self.n_patients, "patient")
        title = f"{len(self.runs)} runs, {PART_TITLES[self.role]}, {format_count(self.n_slides, 'slide')} of {patients}"
        left_out = [f"left out: {problem}" for problem in self.problems]
        return title, [self.table, self.differences_table], [*self.warnings, *left_out]

    def best(self, metric: Metric, digits: int = 3) -> frozenset[str]:
        """The runs with the best value; several if they are equal when rounded to this many digits."""
        values = {run.name: round(run.metrics[metric.name].value, digits) for run in self.runs}
        wanted = max(values.values()) if metric.larger_is_better else min(values.values())
        return frozenset(name for name, value in values.items() if value == wanted)
