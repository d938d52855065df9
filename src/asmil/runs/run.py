"""A run on disk: one object for everything that is read from its folder, or from a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import torch

from asmil.cohort.bag import Bag
from asmil.cohort.features import read_bag_and_info
from asmil.cohort.loader import naming_slide
from asmil.cohort.manifest import Slide
from asmil.cohort.open_features import with_tile_side
from asmil.cohort.source import FeatureInfo
from asmil.cohort.splits import FoldNames, Splits
from asmil.cohort.units import Unit, UnitKind, joined_bag
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.runs.bundle import is_bundle, read_bundle, refuse_bundle
from asmil.runs.cohort import RunCohort
from asmil.runs.covariates import COVARIATES, IMAGE, TERMS_FILE
from asmil.runs.description import RunDescription, read_description
from asmil.runs.layout import RunLayout
from asmil.runs.operating_point import FILE as OPERATING_POINT_FILE
from asmil.runs.operating_point import OperatingPoint, read_operating_point
from asmil.runs.predictions import read_predictions, refuse_invalid
from asmil.runs.seen_names import SeenNames, keys_of
from asmil.runs.stored_settings import StoredSettings
from asmil.runs.trained_models import TrainedModel, load_trained_models
from asmil.runs.training_slides import TrainingSlides, patients_seen, read_training_slides
from asmil.settings.documents import validated
from asmil.tables.time_units import unit_in_words
from asmil.tasks.base import PredictionFormat, TaskKind
from asmil.tasks.prediction_format import prediction_format

FoldsOfRoles = Mapping[str, set[int]]
"""The folds of each role: train, val or test."""


class Run:
    """A run, finished or not, or a bundle. Each file is read when it is first needed.

    layout: the paths of its files
    values: the content of `config.yaml`; settings: the same with types, as far as it is known without the method's code
    device: where the models are put
    own_method: the run's method as given by the user; required for the models if it is code, `module:Class`
    """

    def __init__(self, path: Path | str, device: str = "auto", own_method: str | None = None) -> None:
        self.layout = RunLayout(path)
        self.path = self.layout.path
        self.values = self.layout.read_values()
        self.settings = validated(self.values, StoredSettings, str(self.layout.config), "restore it or train again")
        self._device, self._own_method = device, own_method
        self._named = ""

    @property
    def name(self) -> str:
        """Name of the folder, or another name if several runs have this one."""
        return self._named or self.path.resolve().name

    @property
    def method(self) -> str:
        return self.settings.method or "unknown"

    def called(self, name: str) -> Run:
        """The same run under another name."""
        other = copy(self)
        other._named = name
        return other

    @property
    def is_bundle(self) -> bool:
        """Whether this is a bundle, which has models but nothing about single slides."""
        return is_bundle(self.path)

    # Task

    @property
    def kind(self) -> TaskKind:
        kind: Any = self.settings.task.kind
        if kind not in get_args(TaskKind):
            raise AsmilError(
                f"{self.layout.config}: the task is {kind!r}, which is unknown; restore the file or update asmil"
            )
        return kind  # type: ignore[no-any-return]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes or labels, in the order of the outputs; empty for survival and regression."""
        classes = self.settings.task.classes
        fewest = prediction_format(self.kind, classes).fewest_names
        if len(classes) < fewest:
            raise AsmilError(
                f"{self.layout.config}: task.classes must have at least {fewest} names; restore it or train again"
            )
        return classes

    @cached_property
    def format(self) -> PredictionFormat:
        """The columns of the predictions, and the metrics of the task."""
        return prediction_format(self.kind, self.classes)

    @property
    def time_unit(self) -> str:
        """The unit of survival times, in words."""
        return unit_in_words(self.settings.task.time_unit)

    @property
    def unit(self) -> UnitKind:
        """What a bag is: a slide, or a patient with all slides joined."""
        return self.settings.unit

    # Slides

    @property
    def cohort(self) -> RunCohort:
        """The cohort that the run was trained on."""
        return RunCohort.of(self.settings)

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """The predictions of all trainings, checked: one row per slide, fold, seed and role."""
        refuse_bundle(self.path)
        file = self.layout.predictions
        if not file.is_file():
            raise AsmilError(
                f"{self.path}: the run is unfinished (no predictions.parquet); run the same "
                "`asmil train` command again to finish it"
            )
        table = read_predictions(file)
        refuse_invalid(file, table, self.format)
        return table

    @cached_property
    def term_predictions(self) -> pd.DataFrame | None:
        """The predictions of the image and of the covariates alone (column `term`); None without covariates."""
        if not self.settings.covariates or self.is_bundle:
            return None
        file = self.path / TERMS_FILE
        table = read_predictions(file)
        if "term" not in table:
            raise AsmilError(f"{file}: the column term is missing; restore it or train again")
        for term in (IMAGE, COVARIATES):
            refuse_invalid(file, table[table["term"] == term], self.format)
        return table

    def with_predictions(self, table: pd.DataFrame) -> Run:
        """The same run with predictions of other slides."""
        other = copy(self)
        other.__dict__ |= {"predictions": table, "term_predictions": None}
        return other

    @cached_property
    def splits(self) -> Splits | None:
        """The role of each slide in each fold; None for a bundle and for a run that has just begun."""
        return Splits.load(self.layout.splits) if self.layout.splits.exists() else None

    @property
    def n_folds(self) -> int:
        """The number of folds; a manifest or a table of splits may have more than the settings ask for."""
        return self.settings.folds or 1 if self.splits is None else self.splits.n_folds

    @cached_property
    def fold_names(self) -> FoldNames:
        """The names of the folds; their numbers if the splits cannot be read."""
        try:
            return FoldNames() if self.splits is None else self.splits.fold_names
        except AsmilError:
            return FoldNames()

    def roles_of(self, name: str, column: UnitKind = "slide") -> FoldsOfRoles:
        """The folds of each role of a slide or patient; empty if the run does not have it."""
        return self._roles[column].get(name, {})

    @cached_property
    def _roles(self) -> dict[UnitKind, dict[str, dict[str, set[int]]]]:
        by_column: dict[UnitKind, dict[str, dict[str, set[int]]]] = {"slide": {}, "patient": {}}
        if self.splits is not None:
            table = self.splits.table
            for column, by_name in by_column.items():
                for name, role, fold in zip(table[column], table["role"], table["fold"], strict=True):
                    by_name.setdefault(str(name), {}).setdefault(str(role), set()).add(int(fold))
        return by_column

    def slides_of_role(self, role: str) -> list[str]:
        """The slides that have a role in a fold (`all`: every slide), in the order of the splits."""
        return [name for name, roles in self._roles["slide"].items() if role in (*roles, "all")]

    def bag(self, slide: Slide | Unit) -> tuple[Bag, tuple[FeatureInfo, ...]]:
        """The bag of a slide, or of a patient whose slides are joined, and the headers of its feature files.

        Features that were extracted differently from those of the training are refused.
        """
        unit = slide if isinstance(slide, Unit) else Unit.of_slide(slide)
        bags, headers = [], []
        for part in unit.slides:
            with naming_slide(part.slide, part):
                bag, header = read_bag_and_info(
                    part.source, part.slide, part.mpp, accept=self.description.refuse_other_features
                )
            bags.append(bag)
            headers.append(with_tile_side(header, None if bag.coords is None else bag.coords.numpy()))
        with naming_slide(unit.name, unit.slides[0]):
            return joined_bag(bags, unit.name), tuple(headers)

    # Models

    @cached_property
    def description(self) -> RunDescription:
        """All settings of the run, with those of its method; code that the user has not named is refused."""
        if self.is_bundle:
            read_bundle(self.path)
        return read_description(self.layout, self._own_method)

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self._device)

    @cached_property
    def trained(self) -> list[TrainedModel]:
        """The models of all finished trainings, in eval mode; at least one."""
        return load_trained_models(self.layout, self.description, self.device)

    @property
    def models(self) -> list[MILModel]:
        """The models without their folds, seeds and tasks."""
        return [trained.model for trained in self.trained]

    @property
    def n_unfinished(self) -> int:
        """The number of trainings that were started and have not ended."""
        return len(list(self.layout.trainings())) - len(self.trained)

    def trained_for(self, name: str) -> list[TrainedModel]:
        """The models that were not trained on a slide (or patient); all if all were."""
        seen = self._folds_trained_on(name)
        return [trained for trained in self.trained if trained.fold not in seen] or self.trained

    def saw(self, name: str) -> bool:
        """Whether all models were trained on a slide (or patient)."""
        seen = self._folds_trained_on(name)
        return all(trained.fold in seen for trained in self.trained)

    def _folds_trained_on(self, name: str) -> set[int]:
        return self.roles_of(name, self.unit).get("train", set())

    @cached_property
    def operating_point(self) -> OperatingPoint | None:
        """The threshold that was chosen on validation slides, or None."""
        point = read_operating_point(self.path)
        if point is not None and (len(self.classes) != 2 or point.positive not in self.classes):
            raise AsmilError(
                f"{self.path / OPERATING_POINT_FILE}: {point.positive!r} is not one of two classes of the run; "
                "remove it and evaluate the run again"
            )
        return point

    @cached_property
    def training_slides(self) -> TrainingSlides | None:
        """What the run keeps of its training slides; None for runs of earlier versions."""
        return read_training_slides(self.path)

    @cached_property
    def patients_seen(self) -> dict[str, str]:
        """The patient of each training and validation slide, by slide; empty for a bundle."""
        return {} if self.splits is None else patients_seen(self.splits)

    @cached_property
    def seen_names(self) -> SeenNames | None:
        """Recognizes slides and patients of the training by name; None for bundles of earlier versions."""
        if not self.is_bundle:
            return SeenNames(frozenset(key for pair in self.patients_seen.items() for key in keys_of(*pair)))
        kept = self.training_slides
        if kept is None or kept.names is None:
            return None
        return SeenNames(frozenset(kept.names.tolist()), kept.hashes)


def read_run(path: Path | str, kind: TaskKind | None = None) -> Run:
    """A finished run with checked predictions; AsmilError describes the first problem.

    kind: the expected task; None accepts any
    """
    run = Run(path)
    if kind not in (None, run.kind):
        raise AsmilError(f"{run.path}: the task of this run is {run.kind!r}, but a {kind} task is needed")
    _ = run.predictions
    return run
