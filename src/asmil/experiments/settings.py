"""The settings in a sweep file: cohorts, variants, the settings to be varied, seeds and measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from asmil.errors import AsmilError
from asmil.experiments.measures import MEASURES
from asmil.settings.config import Settings, parse_settings
from asmil.settings.documents import read_yaml
from asmil.synthetic.bags import SurvivalConfig, SyntheticConfig
from asmil.tasks.base import TaskKind

Scalar = bool | int | float | str | None


class CohortConfig(Settings):
    """A cohort of a sweep: a manifest, or a synthetic cohort that the sweep writes first.

    A cohort that gives `manifest` may give `features`, and `splits`, the setting `data.splits`; relative paths start at
    the folder of the sweep file.
    """

    manifest: Path | None = None
    features: Path | None = None
    splits: Path | None = None
    synthetic: SyntheticConfig | None = None
    folder: Path | None = Field(None, description="of a synthetic cohort, to share it; default: in the sweep's folder")
    survival: SurvivalConfig = SurvivalConfig()
    task: TaskKind = "classification"
    settings: dict[str, Any] = Field({}, description="settings of every training on this cohort, by dotted name")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> CohortConfig:
        if (self.manifest is None) == (self.synthetic is None):
            raise ValueError("a cohort needs either manifest (a file) or synthetic (settings of one)")
        return self


class VariantConfig(Settings):
    """A row of the plan: a method with a preset and settings."""

    method: str
    preset: str = "paper"
    settings: dict[str, Any] = Field({}, description="by dotted name")


class Span(Settings):
    """A range of values to draw from; integers if both ends are integers."""

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _is_ordered(self) -> Span:
        if not self.low < self.high:
            raise ValueError(f"low = {self.low} must lie below high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError("a logarithmic range starts above 0")
        return self


class SearchConfig(Settings):
    """How the points of the space are chosen.

    space: by dotted name, a list of values or a range {low, high, log}
    metric: of validation slides, for Optuna; larger is better
    """

    strategy: Literal["grid", "random", "optuna"] = "grid"
    space: dict[str, list[Scalar] | Span] = Field({}, description="by dotted name: values, or {low, high, log}")
    trials: int = Field(20, ge=1, description="points to draw, by random and optuna")
    seed: int = Field(0, ge=0)
    metric: str = "val_auc"
    at_once: int = Field(4, ge=1, description="points that Optuna proposes before it sees their results")

    @model_validator(mode="after")
    def _grid_has_no_ranges(self) -> SearchConfig:
        if self.strategy == "grid":
            for name, values in self.space.items():
                if isinstance(values, Span):
                    raise ValueError(f"search.space.{name}: a grid needs a list of values, not a range")
        for name, values in self.space.items():
            if isinstance(values, list) and not values:
                raise ValueError(f"search.space.{name}: the list of values is empty")
        if self.strategy != "grid" and not self.space:
            raise ValueError(f"search.strategy = {self.strategy} needs search.space")
        return self


class SweepConfig(Settings):
    """A whole sweep.

    settings: of every training; a cohort's come after, then a variant's, then those of a point of the search
    group_seeds: train all seeds of a variant in one run folder; auto: on a GPU, where seeds train side by side
    """

    cohorts: dict[str, CohortConfig]
    variants: dict[str, VariantConfig]
    settings: dict[str, Any] = Field({}, description="of every training, by dotted name")
    search: SearchConfig = SearchConfig()
    seeds: int = Field(1, ge=1)
    first_seed: int = Field(0, ge=0)
    folds: int = Field(1, ge=1)
    group_seeds: bool | Literal["auto"] = "auto"
    measures: list[str] = Field(["slides"], description="see asmil.experiments.measures")

    @model_validator(mode="after")
    def _is_no_empty_plan(self) -> SweepConfig:
        if not self.cohorts or not self.variants:
            raise ValueError("a sweep needs at least one entry in cohorts and one in variants")
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown:
            raise ValueError(f"measures: there is no {unknown[0]!r}; known are {', '.join(MEASURES)}")
        return self


def read_sweep(path: Path) -> SweepConfig:
    """A sweep file; relative paths in it start at its folder."""
    values = read_yaml(path, "correct it, see docs/sweep.md")
    try:
        config = parse_settings(SweepConfig, values)
    except AsmilError as error:
        raise AsmilError(f"{path}: {error}") from None
    base = path.resolve().parent
    cohorts = {name: _located(cohort, base) for name, cohort in config.cohorts.items()}
    return config.model_copy(update={"cohorts": cohorts})


def _located(cohort: CohortConfig, base: Path) -> CohortConfig:
    paths = {name: getattr(cohort, name) for name in ("manifest", "features", "splits", "folder")}
    return cohort.model_copy(update={name: base / path for name, path in paths.items() if path is not None})
