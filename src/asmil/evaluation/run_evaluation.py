"""What the evaluations of all tasks share: the request, the run, and its metrics with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.rows import by_slide
from asmil.evaluation.stability.alarms import Alarm
from asmil.evaluation.terms import TermComparison
from asmil.reporting import Estimate, jsonable
from asmil.reporting.formats import format_count
from asmil.reporting.notebook import Displayed
from asmil.runs.run import Run
from asmil.tables.arrays import Floats
from asmil.tasks.base import Truth

Role = Literal["test", "val"]
PART_TITLES: Mapping[Role, str] = {"test": "test set", "val": "validation set"}
FEWEST_TO_RANK = 30
"""With fewer patients a report warns that they are too few to rank methods."""


@dataclass(frozen=True)
class Request:
    """Options of an evaluation or a comparison: test or validation set, bootstrap, unit and threshold rule.

    threshold_rule: if given, classes are predicted at a threshold; None: the most probable class is predicted
    """

    role: Role = "test"
    resamples: int = 2000
    seed: int = 0
    unit: UnitKind = "slide"
    threshold_rule: str | None = None

    def __post_init__(self) -> None:
        if self.role not in PART_TITLES:
            raise AsmilError(f"role {self.role!r} is unknown: {did_you_mean(self.role, PART_TITLES)}")
        if self.unit not in get_args(UnitKind):
            raise AsmilError(f"unit {self.unit!r} is unknown: {did_you_mean(self.unit, get_args(UnitKind))}")
        if self.resamples < 1:
            raise AsmilError(f"{self.resamples} resamples are too few; give at least 1, better 2000")


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(Displayed):
    """The evaluation of a run on its test or validation set.

    metrics: every metric of the task with its interval
    rows: the predictions that were evaluated
    unit: `slide`, or `patient` for the mean prediction of each patient's slides
    terms: what the covariates and the images contribute; None for a run without covariates
    """

    run: Run = field(repr=False)
    role: Role
    metrics: Mapping[str, Estimate]
    rows: pd.DataFrame = field(repr=False)
    resamples: int
    bootstrap_seed: int
    warnings: tuple[str, ...] = ()
    unit: UnitKind = "slide"
    terms: TermComparison | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.run.name

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.run.path

    @property
    def method(self) -> str:
        """Name of the trained method."""
        return self.run.method

    @property
    def preset(self) -> str:
        """Name of the training preset."""
        return self.run.settings.preset or "none"

    @property
    def n_folds(self) -> int:
        """How many folds were evaluated."""
        return self._count("fold")

    @property
    def n_seeds(self) -> int:
        """How many seeds were evaluated."""
        return self._count("seed")

    @property
    def n_trainings(self) -> int:
        """How many trainings (fold by seed) were evaluated."""
        return self._count("fold", "seed")

    @property
    def n_slides(self) -> int:
        """How many slides were evaluated; patients if each patient has one prediction."""
        return self._count("slide")

    @property
    def n_patients(self) -> int:
        """How many patients were evaluated."""
        return self._count("patient")

    def _count(self, *columns: str) -> int:
        return len(self.rows[list(columns)].drop_duplicates())

    @property
    def unit_name(self) -> UnitKind:
        """What each prediction is about: a slide, or a patient."""
        by_patient = self.run.format.by_patient or self.run.settings.data.unit == "patient"
        return "patient" if by_patient else "slide"

    @property
    def sizes(self) -> str:
        """How many slides and patients were evaluated, as text."""
        patients = format_count(self.n_patients, "patient")
        return patients if self.unit_name == "patient" else f"{format_count(self.n_slides, 'slide')} of {patients}"

    @property
    def mean_of(self) -> str:
        """What the values of the metrics are means of, as text; empty if there is one training."""
        return f"mean of {self.n_trainings} trainings" * (self.n_trainings > 1)

    @property
    def file_suffix(self) -> str:
        """The part of file names that distinguishes this evaluation from that of the test set."""
        return "" if self.role == "test" else f"-{self.role}"

    @cached_property
    def by_slide(self) -> tuple[list[str], Truth, Floats]:
        """Slide names, their truth, and their predictions averaged over trainings (n x C)."""
        return by_slide(self.run.format, self.rows)

    @property
    def decided(self) -> Floats:
        """The predictions of `by_slide` as classes are predicted from them: the highest of a row is predicted."""
        return self.by_slide[2]

    @property
    def in_words(self) -> str:
        """The result in a sentence or two."""
        assert self.run.format.in_words is not None
        values = {name: metric.value for name, metric in self.metrics.items()}
        said = self.run.format.in_words(self.by_slide[1], self.decided, values, self.unit_name)
        few = f" {self.sizes} are too few to rank methods." if self.n_patients < FEWEST_TO_RANK else ""
        how = f"With {' and '.join(self.counted_with)}, " if self.counted_with else ""
        return f"{how}{self.name} {said}.{self.aside}{few}"

    @property
    def aside(self) -> str:
        """A sentence on what differs from the result in words; by default there is none."""
        return ""

    @property
    def counted_with(self) -> list[str]:
        """How the predictions of several trainings became the one prediction of a slide that is counted, as phrases."""
        return []

    @cached_property
    def raised(self) -> tuple[Alarm, ...]:
        """Reasons not to use the predictions or maps of the run."""
        from asmil.evaluation.run_alarms import alarms_given

        return alarms_given(self.path, self.run.format, self.by_slide[1], self.decided, self.unit_name)

    @property
    def alarms(self) -> list[str]:
        """The alarms of the run, each with what to try."""
        return [alarm.short for alarm in self.raised]

    def keep_choices(self) -> None:
        """Save what later predictions need, such as thresholds, in the run folder; by default nothing."""

    def spread(self, estimate: Estimate) -> tuple[str, float]:
        """What a metric varies over (seeds or folds), and its standard deviation."""
        return "seeds", estimate.sd_seeds

    def to_dict(self) -> dict[str, Any]:
        """All results, ready for JSON; undefined numbers are None."""
        return {
            "run": str(self.run.path),
            "name": self.name,
            "method": self.method,
            "preset": self.preset,
            "task": self.run.kind,
            "role": self.role,
            "trainings": self.n_trainings,
            "folds": self.n_folds,
            "seeds": self.n_seeds,
            **({"fold_names": jsonable(self.run.fold_names)} if self.run.fold_names else {}),
            "patients": self.n_patients,
            "bootstrap": {"unit": "patient", "resamples": self.resamples, "seed": self.bootstrap_seed, "level": 0.95},
            "selection": self.run.settings.training.select,
            "max_tiles": self.run.settings.data.max_tiles,
            **({"covariates": self.terms.to_dict()} if self.terms is not None else {}),
            "warnings": list(self.warnings),
        }

    @property
    def table(self) -> pd.DataFrame:
        """One row per metric: value, limits of the 95 % interval, and standard deviation over seeds."""
        rows = [{"metric": name, **metric.with_sd()} for name, metric in self.metrics.items()]
        return pd.DataFrame(rows).set_index("metric")

    def display_parts(self) -> tuple[str, list[pd.DataFrame], list[str]]:
        """The title, the tables and the warnings, as they are shown in a notebook."""
        title = f"{self.name}: {self.method} ({self.preset}), {PART_TITLES[self.role]}, {self.sizes}"
        return title, [self.table], list(self.warnings)

    def csv_rows(self) -> list[dict[str, Any]]:
        """One row per metric."""
        return [
            {
                "run": self.name,
                "method": self.method,
                "preset": self.preset,
                "role": self.role,
                "metric": name,
                "class": "",
                **metric.with_sd(),
                "sd_trainings": metric.sd_trainings,
                "slides": self.n_slides,
                "trainings": self.n_trainings,
                "seeds": self.n_seeds,
                "patients": self.n_patients,
                "resamples": self.resamples,
                "skipped_resamples": metric.skipped,
            }
            for name, metric in self.metrics.items()
        ]
