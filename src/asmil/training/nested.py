"""Nested cross-validation: every fold chooses its settings on its own training patients, never on test patients."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from asmil.cohort.manifest import Cohort
from asmil.cohort.splits import Splits, inner_splits
from asmil.errors import AsmilError, did_you_mean
from asmil.files import write_json
from asmil.runs.config import RunConfig, with_settings
from asmil.runs.epochs import LOG, read_epochs, without_nan
from asmil.runs.layout import CHOICE_FILE
from asmil.runs.notes import read_choice, read_inner_score
from asmil.runs.selection import Merit, merit_of
from asmil.settings.config import flat
from asmil.training.fold_seed_job import FoldSeedJob, TrainingData
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer

CHOOSABLE = ("model", "training", "attention", "anchor", "stabilizers", "task")
"""Sections whose settings each fold may choose."""
OF_THE_RUN = (
    "task.kind",
    "task.last_edge",
    "training.seed",
    "training.device",
    "training.executor",
    "training.checkpoint_seconds",
)
"""Settings of these sections that apply to the whole run."""

Chosen = dict[str, Any]


def candidates(config: RunConfig) -> list[Chosen]:
    """All combinations of the values in `nested.grid`; each is validated now, so that none fails hours later."""
    grid = config.nested.grid
    for name, values in grid.items():
        section = name.partition(".")[0]
        if name in OF_THE_RUN:
            raise AsmilError(f"nested.grid: {name} applies to the whole run and cannot be chosen by a fold; use --set")
        if section not in CHOOSABLE and name != "data.max_tiles":
            raise AsmilError(f"nested.grid: {name} cannot be chosen by a fold: {did_you_mean(section, CHOOSABLE)}")
        if not values:
            raise AsmilError(f"nested.grid: {name} has no values to choose from; give a list")
    return [_checked(config, dict(zip(grid, values, strict=True))) for values in product(*grid.values())]


def _checked(config: RunConfig, settings: Chosen) -> Chosen:
    """The validated settings: `3e-4`, which YAML parses as text, becomes a number."""
    understood = flat(with_settings(config, settings).model_dump(mode="json"))
    return {name: understood.get(name, value) for name, value in settings.items()}


def inner_parts(cohort: Cohort, config: RunConfig, splits: Splits, fold: int) -> Splits:
    """The inner folds of a fold; a class with too few training patients is an error."""
    return inner_splits(cohort, splits, fold, config.nested.folds, config.training.seed + fold, kind=config.task.kind)


@dataclass(frozen=True)
class InnerJob(FoldSeedJob):
    """A training of an inner loop: a candidate, trained on all inner folds but one and measured on that one.

    selects: whether the held-out inner fold selects the epoch, as the validation patients of the fold will for the fold
        itself; otherwise both use the last epoch
    settings: the settings of the candidate
    """

    selects: bool
    settings: Chosen

    @property
    def note(self) -> Path:
        """The file of its score."""
        return self.folder / "score.json"

    @property
    def is_done(self) -> bool:
        """Whether its score is known."""
        return read_inner_score(self.note) is not None

    @property
    def val(self) -> LabeledBags | None:
        """The held-out inner fold, if it selects the epoch."""
        return self._held_out if self.selects else None

    @property
    def _held_out(self) -> LabeledBags:
        return self.data.labeled(self.data.indices(self.splits, self.fold, "val"))

    def finish(self, trainer: Trainer) -> pd.DataFrame:
        """Store the score of the model on the held-out inner fold; the measures are one row."""
        epoch = int(trainer.progress.best["epoch"])
        measures = self._validated(epoch) or without_nan(trainer.validate(self._held_out))
        merit = merit_of(measures, trainer.task, "f1_auc")
        row = {"score": merit.score, "epoch": epoch, **measures}
        write_json(self.note, {**row, "settings": self.settings})
        shutil.rmtree(self.folder / "checkpoints")  # the models of the inner search are no longer needed
        return pd.DataFrame([row])

    def _validated(self, epoch: int) -> dict[str, float | None] | None:
        """The measures of the held-out inner fold at an epoch, if the training took them to select its epoch."""
        if not self.selects:
            return None
        of_epoch = (record["val"] for record in read_epochs(self.folder / LOG) if record["epoch"] == epoch)
        return next(of_epoch, None)


@dataclass(frozen=True)
class InnerSearch:
    """The inner loop of one fold: every candidate is trained on all inner folds but one and evaluated on that one."""

    data: TrainingData
    cohort: Cohort
    config: RunConfig
    splits: Splits
    fold: int
    folder: Path

    def jobs(self) -> list[InnerJob]:
        """The trainings of all candidates, one for each inner fold; none if the fold has chosen."""
        if read_choice(self.folder) is not None:
            return []
        inner = inner_parts(self.cohort, self.config, self.splits, self.fold)
        selects = bool(self.splits.slides(self.fold, "val"))
        jobs = []
        for number, settings in enumerate(candidates(self.config)):
            config = with_settings(self.config, {**settings, "record.attention": "none"})
            for inner_fold in range(self.config.nested.folds):
                data = own_data(self.data, config, self.data.indices(inner, inner_fold, "train"))
                folder, seed = self._folder(number, inner_fold), config.training.seed
                jobs.append(InnerJob(data, config, inner, inner_fold, seed, folder, selects, settings))
        return jobs

    def choose(self) -> Chosen:
        """The candidate with the highest mean score over the inner folds; ties: the lower mean loss, then the first.

        Its trainings must be done.
        """
        chosen = read_choice(self.folder)
        if chosen is not None:
            return chosen
        tried = candidates(self.config)
        folds = self.config.nested.folds
        best, means, results = 0, [], []
        for number, settings in enumerate(tried):
            merits = [self._merit(number, inner_fold) for inner_fold in range(folds)]
            means.append(_mean(merits))
            best = number if means[number].beats(means[best]) else best
            scores = [merit.score for merit in merits]
            results.append(
                {"settings": settings, "scores": scores, "mean": means[number].score, "loss": means[number].loss}
            )
        write_json(self.folder / CHOICE_FILE, {"settings": tried[best], "inner_folds": folds, "candidates": results})
        return tried[best]

    def _folder(self, number: int, inner_fold: int) -> Path:
        return self.folder / "inner" / f"candidate-{number}" / f"fold-{inner_fold}"

    def _merit(self, number: int, inner_fold: int) -> Merit:
        """The task's selection metric and loss of a candidate on a held-out inner fold."""
        merit = read_inner_score(self._folder(number, inner_fold) / "score.json")
        assert merit is not None, "all trainings of the search are done"
        return merit


def own_data(data: TrainingData, config: RunConfig, train: list[int]) -> TrainingData:
    """The data of a training: the term of the covariates is fitted on its training units.

    Bags are prepared for these settings, if folds may choose settings of the model.
    """
    data = data.fitted_on(config, train)
    chooses_model = any(name.startswith("model.") for name in config.nested.grid)
    return data.prepared_for(config, train) if chooses_model else data


def _mean(merits: Sequence[Merit]) -> Merit:
    losses = [merit.loss for merit in merits if merit.loss is not None]
    return Merit(fmean(merit.score for merit in merits), fmean(losses) if len(losses) == len(merits) else None)
