"""One training of a run: a fold with a seed, from its bags to its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.cohort.covariates import Cells, Covariate
from asmil.cohort.loader import BagLoader
from asmil.cohort.outcomes import Outcomes
from asmil.cohort.splits import Roles, Splits
from asmil.cohort.units import Unit
from asmil.files import write_json
from asmil.machine.timing import timed
from asmil.models.base import MILModel, Output
from asmil.models.blocks.standardize import fit_standardization
from asmil.runs.config import RunConfig
from asmil.runs.covariates import COVARIATES, IMAGE, TERMS_FILE, CovariateTerm, cells_of
from asmil.runs.layout import PREDICTIONS_FILE, TASK_FILE, is_finished
from asmil.runs.model import build_model
from asmil.runs.predictions import uncertainty_column, write_predictions
from asmil.runs.task import build_task
from asmil.tasks.base import Columns, Task
from asmil.tasks.prediction_format import prediction_format
from asmil.tasks.survival import completed_task
from asmil.training.initial_weights import initialize
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import EpochObserver, Trainer
from asmil.training.shared_steps import OneProcess


@dataclass(frozen=True)
class TrainingData:
    """The data shared by all trainings of a run: the units of the cohort, their outcomes and their bags.

    initial: pretrained weights that every training starts from
    covariates: with their kinds; none: bags have no covariates
    term: the term of the covariates, fitted on the training bags; see `fitted_on`
    processes: the processes that share the steps of a training; only the first one writes
    """

    units: Sequence[Unit]
    outcomes: Outcomes
    loader: BagLoader
    in_features: int
    device: torch.device
    initial: Mapping[str, Tensor] | None = None
    processes: OneProcess = field(default_factory=OneProcess)
    covariates: tuple[Covariate, ...] = ()
    term: CovariateTerm | None = None

    def indices(self, splits: Splits, fold: int, role: Roles) -> list[int]:
        """The indices of the units with a role in a fold; a patient's slides all have the same role."""
        members = set(splits.slides(fold, role))
        return [i for i, unit in enumerate(self.units) if unit.slides[0].slide in members]

    def labeled(self, indices: Sequence[int]) -> LabeledBags:
        """Units with their targets."""
        chosen = self.outcomes.among(indices)
        part = _Part(self.loader, list(indices), self.offsets(indices))
        return LabeledBags(part, chosen.targets, chosen.strata, chosen.stratum_names)

    def cells(self, indices: Sequence[int]) -> list[Cells]:
        """The covariates of some units."""
        return cells_of([self.units[i] for i in indices])

    def offsets(self, indices: Sequence[int]) -> Tensor | None:
        """n x C, what the covariates of some units add to their logits; None without covariates."""
        return None if self.term is None else self.term.offsets(self.cells(indices))

    def fitted_on(self, config: RunConfig, train: Sequence[int]) -> TrainingData:
        """The same data, with the term of the covariates fitted on the units `train`."""
        if not self.covariates:
            return self
        task = build_task(config, self.outcomes, train)
        targets = self.outcomes.targets[list(train)]
        return replace(self, term=CovariateTerm.fit(self.covariates, task, self.cells(train), targets))

    def model_and_task(self, config: RunConfig, train: Sequence[int], seed: int) -> tuple[MILModel, Task]:
        """The initial model, and the task fitted on the units `train`."""
        task = build_task(config, self.outcomes, train)
        return build_model(config, self.in_features, task.n_outputs, seed), task

    def prepared_for(self, config: RunConfig, train: Sequence[int]) -> TrainingData:
        """The same data, with bags prepared for a model with these settings (neighbors, clusters)."""
        model, _ = self.model_and_task(config, train, config.training.seed)
        return replace(self, loader=self.loader.preparing(model.prepare))

    def trainer(
        self,
        config: RunConfig,
        train: Sequence[int],
        fold: int,
        seed: int,
        folder: Path,
        on_epoch: EpochObserver | None = None,
    ) -> Trainer:
        """A trainer for the units `train`, ready to start or resume."""
        model, task = self.model_and_task(config, train, seed)
        if self.initial is not None:
            initialize(model, self.initial)
        bags = self.labeled(train).bags
        fit_standardization(model, (bag.features for bag in bags.stream(range(len(bags)))))
        return Trainer(
            model,
            task,
            config,
            seed=seed,
            fold=fold,
            device=self.device,
            folder=folder if self.processes.leads else None,
            on_epoch=on_epoch,
            processes=self.processes,
        )


@dataclass(frozen=True)
class FoldSeedJob:
    """One training: a fold with a seed."""

    data: TrainingData
    config: RunConfig
    splits: Splits
    fold: int
    seed: int
    folder: Path

    def trainer(self, on_epoch: Callable[[Mapping[str, Any]], None]) -> Trainer:
        """The trainer, ready to start or resume."""
        train = self.data.indices(self.splits, self.fold, "train")
        return self.data.trainer(self.config, train, self.fold, self.seed, self.folder, on_epoch)

    @property
    def is_done(self) -> bool:
        """Whether the training is complete: its predictions exist."""
        return is_finished(self.folder)

    @property
    def predictions(self) -> Path:
        """The file of its predictions."""
        return self.folder / PREDICTIONS_FILE

    def model_and_task(self) -> tuple[MILModel, Task]:
        """The initial model, and the task."""
        return self.data.model_and_task(self.config, self.data.indices(self.splits, self.fold, "train"), self.seed)

    @property
    def train(self) -> LabeledBags:
        """The training units."""
        return self.data.labeled(self.data.indices(self.splits, self.fold, "train"))

    @property
    def val(self) -> LabeledBags | None:
        """The validation units, if there are any."""
        indices = self.data.indices(self.splits, self.fold, "val")
        return self.data.labeled(indices) if indices else None

    @timed("predictions")
    def finish(self, trainer: Trainer) -> pd.DataFrame:
        """Predict the validation and test units with the trained model; test bags are not read before this."""
        train_logits = trainer.predict(self.train.bags) if trainer.task.joint else None
        task = self._completed(trainer.task, train_logits)
        write_json(self.folder / TASK_FILE, task.to_dict())
        tables, of_terms = [], []
        roles: tuple[Roles, ...] = ("val", "test")
        for role in roles:
            indices = self.data.indices(self.splits, self.fold, role)
            bags = self.data.labeled(indices).bags
            uncertainties = _Uncertainties(task)
            logits = trainer.predict(bags, uncertainties.note) if indices else torch.zeros(0, task.n_outputs)
            tables.append(self._table(task, logits, role, indices).assign(**uncertainties.columns()))
            of_terms += self._tables_of_terms(trainer.task, train_logits, logits, role, indices)
        if self.data.term is not None:
            self.data.term.save(self.folder)
            write_predictions(self.folder / TERMS_FILE, _joined(of_terms))
        return _joined(tables)

    def _completed(self, task: Task, train_logits: Tensor | None) -> Task:
        """The task, completed with the logits of the training units: for Cox, the baseline survival."""
        return task if train_logits is None else completed_task(task, train_logits, self.train.targets)

    def _tables_of_terms(
        self, task: Task, train_logits: Tensor | None, logits: Tensor, role: Roles, indices: list[int]
    ) -> list[pd.DataFrame]:
        """What the method predicts without the term of the covariates, and what the covariates predict alone."""
        term = self.data.term
        if term is None:
            return []
        train = self.data.indices(self.splits, self.fold, "train")
        of_train = {
            IMAGE: None if train_logits is None else train_logits - term.offsets(self.data.cells(train)),
            COVARIATES: None if train_logits is None else term.logits(self.data.cells(train)),
        }
        cells = self.data.cells(indices)
        of_units = {IMAGE: logits - term.offsets(cells), COVARIATES: term.logits(cells)}
        return [
            self._table(self._completed(task, of_train[name]), values, role, indices).assign(term=name)
            for name, values in of_units.items()
        ]

    def _table(self, task: Task, logits: Tensor, role: Roles, indices: list[int]) -> pd.DataFrame:
        """The predictions of some units, with their outcomes."""
        units = [self.data.units[i] for i in indices]
        columns: Columns = {
            "slide": [unit.name for unit in units],
            "patient": [unit.patient for unit in units],
            "fold": [self.fold] * len(units),
            "seed": [self.seed] * len(units),
            "role": [role] * len(units),
            **_truth_columns(self.data.outcomes, indices),
            **task.columns(logits),
        }
        return pd.DataFrame(columns)


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


class _Uncertainties:
    """The uncertainties of the bags that a model predicts, for methods that estimate them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._of_bags: list[dict[str, float]] = []

    def note(self, model: MILModel, bag: Bag, output: Output) -> None:
        """Note the uncertainties of the next bag."""
        self._of_bags.append(model.uncertainty(output, self._task))

    def columns(self) -> dict[str, list[float]]:
        """The uncertainties of all bags, by column of the predictions."""
        names = self._of_bags[0] if self._of_bags else ()
        return {uncertainty_column(name): [of_bag[name] for of_bag in self._of_bags] for name in names}


def _truth_columns(outcomes: Outcomes, indices: Sequence[int]) -> Columns:
    return prediction_format(outcomes.kind, outcomes.names).target_columns(outcomes.targets[list(indices)])


@dataclass(frozen=True)
class _Part:
    """Some units of a loader, as a source of bags; offsets: n x C, of their covariates."""

    loader: BagLoader
    indices: Sequence[int]
    offsets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        bags = self.loader.stream([self.indices[i] for i in order])
        if self.offsets is None:
            return bags
        return (replace(bag, offset=self.offsets[i]) for i, bag in zip(order, bags, strict=True))

    def keys(self) -> Sequence[int]:
        """Identifiers of these units within the cohort."""
        return self.indices
