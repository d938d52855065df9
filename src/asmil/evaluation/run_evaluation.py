"""What the evaluations of all tasks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.display import Displayed
from asmil.evaluation.run import Run
from asmil.reporting import Estimate
from asmil.reporting.formats import format_count

Role = Literal["test", "val"]
PART_TITLES: Mapping[Role, str] = {"test": "test part", "val": "validation part"}
FEWEST_RESAMPLES = 1


@dataclass(frozen=True, kw_only=True)
class RunEvaluation(Displayed):
    """How good a run is on one part of its cohort.

    metrics: every metric of the task with its interval
    rows: the predictions that were evaluated
    """

    run: Run = field(repr=False)
    role: Role
    metrics: Mapping[str, Estimate]
    rows: pd.DataFrame = field(repr=False)
    resamples: int
    bootstrap_seed: int
    warnings: tuple[str, ...] = ()

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
        return str(self.run.setting("method") or "unknown")

    @property
    def preset(self) -> str:
        """Name of the training preset."""
        return str(self.run.setting("preset") or "none")

    @property
    def n_folds(self) -> int:
        """How many folds were evaluated."""
        return int(self.rows["fold"].nunique())

    @property
    def n_seeds(self) -> int:
        """How many seeds were evaluated."""
        return int(self.rows["seed"].nunique())

    @property
    def n_trainings(self) -> int:
        """How many trainings (fold by seed) were evaluated."""
        return len(self.rows[["fold", "seed"]].drop_duplicates())

    @property
    def n_slides(self) -> int:
        """How many slides were evaluated; patients where each has one prediction."""
        return int(self.rows["slide"].nunique())

    @property
    def n_patients(self) -> int:
        """How many patients were evaluated."""
        return int(self.rows["patient"].nunique())

    @property
    def sizes(self) -> str:
        """What was evaluated, in words."""
        return f"{format_count(self.n_slides, 'slide')} of {format_count(self.n_patients, 'patient')}"

    @property
    def file_suffix(self) -> str:
        """What tells the files of this evaluation from those of the test part."""
        return "" if self.role == "test" else f"-{self.role}"

    def keep_choices(self) -> None:
        """Write what later predictions need into the run folder, such as thresholds; by default nothing."""

    def spread(self, estimate: Estimate) -> tuple[str, float]:
        """Over what a metric varies, and its standard deviation."""
        return "seeds", estimate.sd_seeds

    def to_dict(self) -> dict[str, Any]:
        """Everything found, for JSON: undefined numbers are None."""
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
            "patients": self.n_patients,
            "bootstrap": {"unit": "patient", "resamples": self.resamples, "seed": self.bootstrap_seed, "level": 0.95},
            "selection": self.run.setting("training", "select"),
            "max_tiles": self.run.setting("data", "max_tiles"),
            "warnings": list(self.warnings),
        }

    @property
    def table(self) -> pd.DataFrame:
        """One row per metric: its value, the ends of its 95 % interval and its standard deviation over seeds."""
        rows = {
            name: {"value": one.value, **one.interval._asdict(), "sd_seeds": one.sd_seeds}
            for name, one in self.metrics.items()
        }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("metric")

    def display_parts(self) -> tuple[str, list[pd.DataFrame], list[str]]:
        """The title, the tables and the warnings, as they are shown in a notebook."""
        title = f"{self.name}: {self.method} ({self.preset}), {PART_TITLES[self.role]}, {self.sizes}"
        return title, [self.table], list(self.warnings)

    def csv_rows(self) -> list[dict[str, Any]]:
        """One row per metric."""
        shared = {"run": self.name, "method": self.method, "preset": self.preset, "role": self.role}
        counts = {
            "slides": self.n_slides,
            "trainings": self.n_trainings,
            "seeds": self.n_seeds,
            "patients": self.n_patients,
            "resamples": self.resamples,
        }
        return [
            {
                **shared,
                "metric": name,
                "class": "",
                **dict(zip(("value", "low", "high"), (metric.value, *metric.interval), strict=True)),
                "sd_seeds": metric.sd_seeds,
                "sd_trainings": metric.sd_trainings,
                **counts,
                "skipped_resamples": metric.skipped,
            }
            for name, metric in self.metrics.items()
        ]


def refuse_request(role: str, resamples: int, unit: str = "slide") -> None:
    """Refuse values that no evaluation or comparison can use."""
    if role not in PART_TITLES:
        raise AsmilError(f"role {role!r} is unknown: {did_you_mean(role, PART_TITLES)}")
    if unit not in ("slide", "patient"):
        raise AsmilError(f"unit {unit!r} is unknown: {did_you_mean(unit, ('slide', 'patient'))}")
    if resamples < FEWEST_RESAMPLES:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")


def rows_of(run: Run, role: Role, unit: UnitKind = "slide") -> pd.DataFrame:
    """The predictions of one part; with `unit` patient, the mean prediction of each patient's slides."""
    rows = part_of(run, role, unit)
    if rows.empty:
        others = sorted(set(run.predictions["role"].astype(str)))
        hint = "; `--role val` evaluates the validation part" if role == "test" and "val" in others else ""
        raise AsmilError(
            f"{run.path}: there are no {role} predictions, only {', '.join(others) or 'none at all'}{hint}"
        )
    return rows


def part_of(run: Run, role: Role, unit: UnitKind = "slide") -> pd.DataFrame:
    """As `rows_of`, but without a complaint about a part that has no predictions."""
    rows = run.predictions[run.predictions["role"] == role]
    return join_patients(run, rows) if unit == "patient" else rows


def join_patients(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """One row per patient, fold and seed: the mean of the predictions of its slides, named after the patient.

    Slides of a patient with different targets are refused.
    """
    truth = list(run.format.truth_columns)
    for patient, part in table[["patient", *truth]].drop_duplicates().groupby("patient"):
        if len(part) > 1:
            found = " and ".join(", ".join(map(str, row)) for row in part[truth].itertuples(index=False))
            raise AsmilError(
                f"{run.path}: the slides of patient {patient} have different targets ({found}); "
                "evaluate slides instead (--unit slide)"
            )
    kept = dict.fromkeys(run.format.prediction_columns, "mean") | dict.fromkeys(truth, "first")
    joined = table.groupby(["patient", "fold", "seed", "role"], as_index=False, sort=False).agg(kept)
    return joined.assign(slide=joined["patient"])
