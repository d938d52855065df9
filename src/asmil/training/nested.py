"""Nested cross-validation: every fold chooses its settings on its own training patients, never on test patients."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from asmil.cohort.manifest import Cohort
from asmil.cohort.splits import Splits, inner_splits
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError, did_you_mean
from asmil.files import write_json
from asmil.runs.config import RunConfig, with_settings
from asmil.runs.epochs import without_nan
from asmil.runs.layout import CHOICE_FILE
from asmil.runs.notes import read_choice, read_inner_score
from asmil.runs.selection import Merit, merit_of
from asmil.settings.config import flat
from asmil.training.fold_seed_job import TrainingData

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
class InnerSearch:
    """The inner loop of one fold: every candidate is trained on all inner folds but one and evaluated on that one."""

    data: TrainingData
    cohort: Cohort
    config: RunConfig
    splits: Splits
    fold: int
    folder: Path

    def choose(self, report: Progress) -> Chosen:
        """The candidate with the highest mean score over the inner folds; ties: the lower mean loss, then the first.

        report: called with the number of inner trainings done and their total
        """
        note = self.folder / CHOICE_FILE
        chosen = read_choice(self.folder)
        if chosen is not None:
            return chosen
        tried = candidates(self.config)
        folds = self.config.nested.folds
        inner = inner_parts(self.cohort, self.config, self.splits, self.fold)
        best, means, results = 0, [], []
        for number, settings in enumerate(tried):
            merits = []
            for inner_fold in range(folds):
                report(number * folds + inner_fold, len(tried) * folds)
                merits.append(self._merit(settings, number, inner, inner_fold))
            means.append(_mean(merits))
            best = number if means[number].beats(means[best]) else best
            scores = [merit.score for merit in merits]
            results.append(
                {"settings": settings, "scores": scores, "mean": means[number].score, "loss": means[number].loss}
            )
        write_json(note, {"settings": tried[best], "inner_folds": folds, "candidates": results})
        return tried[best]

    def _merit(self, settings: Chosen, number: int, inner: Splits, inner_fold: int) -> Merit:
        """The task's selection metric and loss on the held-out inner fold, at the chosen epoch; the result is stored.

        If the fold has validation patients, which will select its epoch, the held-out inner fold selects the epoch
        here; otherwise both use the last epoch.
        """
        folder = self.folder / "inner" / f"candidate-{number}" / f"fold-{inner_fold}"
        note = folder / "score.json"
        noted = read_inner_score(note)
        if noted is not None:
            return noted
        config = with_settings(self.config, {**settings, "record.attention": "none"})
        train, held_out = (self.data.indices(inner, inner_fold, role) for role in ("train", "val"))
        data = own_data(self.data, config, train)
        trainer = data.trainer(config, train, inner_fold, config.training.seed, folder)
        val = data.labeled(held_out)
        epoch = trainer.fit(data.labeled(train), val if self.splits.slides(self.fold, "val") else None)
        measures = without_nan(trainer.validate(val))
        merit = merit_of(measures, trainer.task, "f1_auc")
        write_json(note, {"score": merit.score, "epoch": epoch, "settings": settings, **measures})
        shutil.rmtree(folder / "checkpoints")  # the models of the inner search are no longer needed
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
