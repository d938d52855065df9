"""The settings in a run's `config.yaml`; reading them does not execute the user's own code.

Every value may be None: earlier versions of asmil did not write all of them. `RunDescription` has the complete
settings, with the defaults of the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, model_validator

from asmil.cohort.covariates import parse_covariates
from asmil.cohort.units import UnitKind
from asmil.tables.time_units import TimeUnit


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_none(cls, values: Any) -> Any:
        """A section or value of null is like one that is missing."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, Mapping) else values


class StoredTask(_Section):
    """The task, with its classes or labels."""

    kind: str | None = None
    classes: tuple[str, ...] = ()
    time_unit: TimeUnit | None = None


class StoredTraining(_Section):
    """Learning rate, and how the epoch was selected."""

    select: str | None = None
    schedule: str | None = None
    lr: FiniteFloat | None = None
    lr_min: FiniteFloat = 0.0
    lr_drops: tuple[int, ...] = ()
    lr_drop_factor: FiniteFloat | None = None


class StoredAttention(_Section):
    """The normalizer that replaces that of the method; `own`: the method's own."""

    normalizer: str | None = None


class StoredAnchor(_Section):
    """The anchor; the normalizer `none` means that there is none."""

    normalizer: str | None = None
    weight: FiniteFloat | None = None


class StoredData(_Section):
    """The unit of prediction, the maximum number of tiles per bag in training, and the columns of covariates."""

    unit: str | None = None
    max_tiles: int | None = None
    covariates: tuple[str, ...] = ()


class StoredRecord(_Section):
    """The slides whose attention was recorded: `none`, `all`, or the number of slides per class."""

    attention: str | int | None = None


class StoredCohort(_Section):
    """The paths of the manifest and the features, and the columns that were read; not in a bundle."""

    manifest: str | None = None
    features: str | None = None
    columns: dict[str, str] | None = None
    rows_sha256: str | None = None


class StoredTerm(_Section):
    """A stabilizer besides the anchor."""

    weight: FiniteFloat | None = None


class StoredSettings(_Section):
    """The content of `config.yaml`, as far as reports, maps and the viewer need it.

    A section that is not a mapping counts as missing.
    """

    method: str | None = None
    preset: str | None = None
    folds: int | None = None
    seeds: int | None = None
    task: StoredTask = StoredTask()
    training: StoredTraining = StoredTraining()
    attention: StoredAttention = StoredAttention()
    anchor: StoredAnchor = StoredAnchor()
    stabilizers: dict[str, StoredTerm] = {}
    data: StoredData = StoredData()
    record: StoredRecord = StoredRecord()
    cohort: StoredCohort = StoredCohort()

    @model_validator(mode="before")
    @classmethod
    def _leave_out_other_sections(cls, values: Any) -> Any:
        sections = ("training", "attention", "anchor", "stabilizers", "data", "record", "cohort")
        return {k: v for k, v in values.items() if k not in sections or isinstance(v, Mapping)}

    @property
    def unit(self) -> UnitKind:
        """What a bag is: a slide, or a patient with all slides joined."""
        joined = self.data.unit == "patient" or (self.data.unit != "slide" and self.task.kind == "survival")
        return "patient" if joined else "slide"

    @property
    def covariates(self) -> tuple[str, ...]:
        """The names of the covariates."""
        return tuple(covariate.name for covariate in parse_covariates(self.data.covariates))

    @property
    def has_anchor(self) -> bool:
        return self.anchor.normalizer not in (None, "none") and self.anchor.weight != 0

    def weight_of(self, stabilizer: str) -> float:
        """The weight of a stabilizer; 0 if the run has none of that name."""
        return (self.stabilizers.get(stabilizer) or StoredTerm()).weight or 0.0
