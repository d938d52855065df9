"""The cohort that a run was trained on: where its manifest and features are, and how its columns are read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from asmil.cohort.manifest import Cohort, read_manifest
from asmil.cohort.problems import Problem
from asmil.errors import AsmilError
from asmil.runs.stored_settings import StoredSettings
from asmil.tables.columns import ColumnMapping, understand_columns
from asmil.tables.text_table import is_table, read_text_table
from asmil.tables.time_units import TimeUnit
from asmil.tasks.base import TaskKind


@dataclass(frozen=True)
class RunCohort:
    """The cohort in a run's `config.yaml`; None for what it does not contain.

    features: the folder of features that the user gave
    columns: the columns that the user chose
    time_unit: of survival times
    covariates: the names of the covariates
    """

    manifest: Path | None
    features: Path | None = None
    columns: ColumnMapping | None = None
    time_unit: TimeUnit | None = None
    covariates: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: StoredSettings) -> RunCohort:
        """The cohort of a run with these settings; a bundle has none."""
        stored = settings.cohort
        return cls(
            None if stored.manifest is None else Path(stored.manifest),
            None if stored.features is None else Path(stored.features),
            stored.columns,
            settings.task.time_unit,
            settings.covariates,
        )

    def at(self, manifest: Path) -> RunCohort:
        """Another manifest, with the same columns if it has them; its features are next to it."""
        return replace(self, manifest=manifest, features=None, columns=self.columns_in(manifest))

    def columns_in(self, table: Path) -> dict[str, str]:
        """The chosen columns that another table also has."""
        if not self.columns or not table.is_file() or not is_table(table):
            return {}
        cells, kept = read_text_table(table), dict[str, str]()
        for name in sorted(self.columns, key=lambda name: name != "slide"):  # barcodes are read from the slides
            with suppress(AsmilError):
                understand_columns(table, cells, {**kept, name: self.columns[name]})
                kept[name] = self.columns[name]
        return kept

    @property
    def is_there(self) -> bool:
        """Whether the manifest still exists."""
        return self.manifest is not None and self.manifest.is_file()

    def read(self, kind: TaskKind | None = None, features: Path | None = None) -> tuple[Cohort, list[Problem]]:
        """The usable rows of the manifest, with their covariates, and the problems of the others.

        features: where the features are now; None: where they were in training
        """
        assert self.manifest is not None
        there = features or self.features_there
        return read_manifest(self.manifest, there, kind, self.columns, self.covariates)[:2]

    @property
    def features_there(self) -> Path | None:
        """Where the features were in training; None if they were next to the manifest, or no longer exist."""
        return self.features if self.features is not None and self.features.exists() else None
