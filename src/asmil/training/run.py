"""A run: the trainings of one command, fold by fold and seed by seed, into one folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asmil.cohort.bag import Bag
from asmil.cohort.consistency import refuse_mixed
from asmil.cohort.features import FeatureInfo, fingerprint, inspect_features
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.loader import PACK_NAME, BagLoader
from asmil.cohort.manifest import Cohort, load_cohort
from asmil.cohort.pack import write_pack
from asmil.cohort.splits import Roles, Splits, make_splits
from asmil.errors import AsmilError
from asmil.tasks.classification import Classification, balanced_weights
from asmil.training.config import RunConfig
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.run_folder import RunDescription, RunFolder, describe
from asmil.training.setup import build_model, build_stabilizers, choose_device, total_epochs


class RunObserver:
    """Is told how a run goes on; the default listens to nothing."""

    def began(self, description: RunDescription, splits: Splits) -> None:
        """The cohort is read and split."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Work before the first training: so many of all slides are done."""

    def note(self, text: str) -> None:
        """Something that the user may not expect."""

    def training(self, fold: int, seed: int, epochs: int, done: bool) -> None:
        """The training of a fold and seed, over so many epochs, begins, or was done before."""

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        """An epoch has ended."""


def train_run(
    manifest: Path | str,
    out: Path | str,
    config: RunConfig,
    features: Path | str | None = None,
    observer: RunObserver | None = None,
) -> RunFolder:
    """Train every fold and seed of a run; one that was begun before goes on where it stopped.

    The slides of a test fold are read only after the training of that fold has ended.
    """
    observer = observer or RunObserver()
    folder = RunFolder(out)
    cohort = load_cohort(manifest, features)
    infos = _inspect(cohort, observer)
    refuse_mixed(infos)
    description = describe(config, cohort, infos)
    device = choose_device(config.training.device)
    splits = Splits.load(folder.splits) if folder.splits.exists() else _make_splits(cohort, config)
    refuse_leakage(cohort, splits)
    model = build_model(config, description.in_features, len(cohort.classes), config.training.seed)
    build_stabilizers(config, model, config.training.seed)  # settings that cannot be built leave no folder behind
    folder.begin(description)
    if not folder.splits.exists():
        splits.save(folder.splits)
    observer.began(description, splits)
    if config.folds > 1 and any(slide.split for slide in cohort.slides):
        observer.note(f"the manifest's column 'split' is not used, since {config.folds} folds were asked for")
    if config.data.max_tiles is not None:
        observer.note(f"training bags are capped at {config.data.max_tiles} tiles, drawn anew every epoch")

    cache = folder.path / "cache"
    if config.data.cache == "disk":
        write_pack(cohort.slides, cache / PACK_NAME, partial(observer.preparing, "packing features"))
    loader = BagLoader(cohort.slides, config.data.cache, cache, model.prepare)
    epochs = total_epochs(model, config)
    tables = []
    for fold in range(splits.n_folds):
        for seed in range(config.training.seed, config.training.seed + config.seeds):
            path = folder.training(fold, seed) / "predictions.parquet"
            observer.training(fold, seed, epochs, path.exists())
            if not path.exists():
                job = _Training(folder, description, cohort, splits, loader, fold, seed)
                table = job.train(device, observer)
                folder.write_predictions(path, table)
            tables.append(pd.read_parquet(path))
    folder.write_predictions(folder.predictions, pd.concat(tables, ignore_index=True))
    return folder


def _inspect(cohort: Cohort, observer: RunObserver) -> list[FeatureInfo]:
    """The headers of all feature files; their fingerprints, which the checks ask for, are taken on the way."""
    infos = []
    for done, slide in enumerate(cohort.slides, start=1):
        infos.append(inspect_features(slide.source))
        fingerprint(slide.source)
        observer.preparing("reading headers", done, len(cohort))
    return infos


def _make_splits(cohort: Cohort, config: RunConfig) -> Splits:
    return make_splits(cohort, config.folds, config.training.seed, config.data.val_share, config.data.test_share)


@dataclass(frozen=True)
class _Part:
    """Some slides of a loader, as a source of bags."""

    loader: BagLoader
    places: Sequence[int]

    def __len__(self) -> int:
        return len(self.places)

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        return self.loader.stream([self.places[i] for i in order])


@dataclass(frozen=True)
class _Training:
    """One fold and seed of a run."""

    folder: RunFolder
    description: RunDescription
    cohort: Cohort
    splits: Splits
    loader: BagLoader
    fold: int
    seed: int

    def train(self, device: Any, observer: RunObserver) -> pd.DataFrame:
        """Train, then predict the validation and test slides."""
        config = self.description.config
        train, val = self._part("train"), self._part("val")
        if len(train.bags) == 0:
            raise AsmilError(f"fold {self.fold} has no training slides; check the splits in {self.folder.splits}")
        weights = None
        if config.training.class_weights == "balanced":
            weights = balanced_weights(train.targets.tolist(), len(self.cohort.classes))
        task = Classification(self.cohort.classes, weights)
        model = build_model(config, self.description.in_features, task.n_outputs, self.seed)
        trainer = Trainer(
            model,
            task,
            config,
            seed=self.seed,
            fold=self.fold,
            device=device,
            folder=self.folder.training(self.fold, self.seed),
            on_epoch=lambda record: observer.epoch(self.fold, self.seed, record),
        )
        trainer.fit(train, val if len(val.bags) else None)
        tables = [self._predict(trainer, role) for role in ("val", "test")]
        return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)

    def _places(self, role: Roles) -> list[int]:
        place = {slide.slide: i for i, slide in enumerate(self.cohort.slides)}
        return [place[name] for name in self.splits.slides(self.fold, role)]

    def _part(self, role: Roles) -> LabeledBags:
        places = self._places(role)
        targets = [self.cohort.target(self.cohort.slides[i]) for i in places]
        return LabeledBags(_Part(self.loader, places), np.array(targets, dtype=np.int64))

    def _predict(self, trainer: Trainer, role: Roles) -> pd.DataFrame:
        part = self._part(role)
        slides = [self.cohort.slides[i] for i in self._places(role)]
        columns: dict[str, Any] = {
            "slide": [slide.slide for slide in slides],
            "patient": [slide.patient for slide in slides],
            "fold": self.fold,
            "seed": self.seed,
            "role": role,
            "target": [slide.label for slide in slides],
        }
        probabilities = trainer.predict(part.bags) if slides else np.zeros((0, len(self.cohort.classes)))
        for index, name in enumerate(self.cohort.classes):
            columns[f"prob_{name}"] = probabilities[:, index]
        return pd.DataFrame(columns)
