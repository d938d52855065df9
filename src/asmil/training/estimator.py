"""The methods as scikit-learn classifiers over bags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from asmil.arithmetic import exact_arithmetic
from asmil.cohort.bag import Bag
from asmil.config import merge, nested
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.models.inference import infer
from asmil.tasks.classification import Classification, balanced_weights
from asmil.training.config import RunConfig
from asmil.training.initial_weights import read_initial_weights, resolve_with_init, try_initialization
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.setup import build_model, choose_device


class MILClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A method that learns from bags, with scikit-learn's conventions.

    >>> draw = np.random.default_rng(0)
    >>> labels = ["normal", "tumor"] * 3
    >>> bags = [draw.normal(label == "tumor", size=(20, 8)) for label in labels]
    >>> classifier = MILClassifier(method="asmil", epochs=2).fit(bags, labels)
    >>> classifier.predict_proba(bags).shape
    (6, 2)

    Bags are arrays, tensors or data frames of N x D (any N, one D), or `asmil.Bag`; labels are one per bag.

    method, preset: as for `asmil train`; the method may also be a class of yours, a subclass of `asmil.MILModel`
    epochs, lr: shorthands for the settings `training.epochs` and `training.lr`
    settings: further settings by their dotted names, e.g. {"model.tokens": 4, "anchor.weight": 0.1}
    validation_share: of the training bags, kept aside (stratified) to choose the epoch; 0 keeps the last epoch
    random_state: the seed; None draws one from numpy's global state, so that every fit differs
    """

    def __init__(
        self,
        method: str | type[MILModel] = "asmil",
        preset: str = "paper",
        epochs: int | None = None,
        lr: float | None = None,
        settings: Mapping[str, Any] | None = None,
        validation_share: float = 0.0,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.preset = preset
        self.epochs = epochs
        self.lr = lr
        self.settings = settings
        self.validation_share = validation_share
        self.device = device
        self.random_state = random_state

    def fit(self, bags: Sequence[Any], labels: Sequence[Any] | npt.NDArray[Any]) -> MILClassifier:
        """Train on bags and their labels."""
        labels = _as_labels(labels)
        if len(bags) == 0 or len(bags) != len(labels):
            raise AsmilError(f"{len(bags)} bags and {len(labels)} labels; give one label per bag, and at least one bag")
        ready = _as_bags(bags)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        config = self._config()
        seed = config.training.seed
        weights = None
        if config.training.class_weights == "balanced":
            weights = balanced_weights(targets.tolist(), len(self.classes_))
        self._task = Classification([str(name) for name in self.classes_], weights)
        self.n_features_in_ = ready[0].width
        device = choose_device(config.training.device)
        model = build_model(config, ready[0].width, self._task.n_outputs, seed)
        if config.init.weights is not None:
            try_initialization(model, read_initial_weights(Path(config.init.weights)))
        trainer = Trainer(model, self._task, config, seed=seed, device=device)
        prepared = [model.prepare(bag) for bag in ready]
        train, val = self._split(prepared, targets.astype(np.int64), seed)
        self.selected_epoch_ = trainer.fit(train, val)
        self.model_ = model
        self._device = device
        return self

    @exact_arithmetic()
    def predict_proba(self, bags: Sequence[Any]) -> npt.NDArray[np.float64]:
        """Class probabilities, one row per bag, columns in the order of `classes_`."""
        check_is_fitted(self, "model_")
        logits = [infer(self.model_, self.model_.prepare(bag), self._device).logits for bag in _as_bags(bags)]
        if not logits:
            return np.empty((0, len(self.classes_)))
        return np.asarray(self._task.probabilities(torch.stack(logits)).numpy())

    def predict(self, bags: Sequence[Any]) -> npt.NDArray[Any]:
        """The most probable class of every bag."""
        chosen = self.predict_proba(bags).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def attention(self, bag: Any) -> npt.NDArray[np.float32]:
        """How much each tile of a bag counted: N values that sum to 1, by the method's own heat map."""
        check_is_fitted(self, "model_")
        if not self.model_.score_axes:
            kinds = ", ".join(repr(kind) for kind in self.model_.heatmap_kinds)
            name = self.method if isinstance(self.method, str) else type(self.model_).__name__
            raise AsmilError(f"{name} has no attention; heatmap(bag) returns what it has: {kinds}")
        return self.heatmap(bag, "attention")

    def heatmap(self, bag: Any, kind: str | None = None) -> npt.NDArray[np.float32]:
        """One value per tile, as the method's authors draw it; `model_.heatmap_kinds` names the kinds."""
        check_is_fitted(self, "model_")
        (ready,) = _as_bags([bag])
        output = infer(self.model_, self.model_.prepare(ready), self._device)
        return np.asarray(self.model_.heatmap(output, kind).float().numpy())

    def _config(self) -> RunConfig:
        own = {"epochs": self.epochs, "lr": self.lr, "seed": self._seed(), "device": self.device}
        chosen = {f"training.{name}": value for name, value in own.items() if value is not None}
        twice = sorted(chosen.keys() & (self.settings or {}).keys())
        if twice:
            raise AsmilError(f"settings[{twice[0]!r}] is also a parameter of MILClassifier; set it there")
        changes: dict[str, Any] = {}
        for name, value in {**(self.settings or {}), **chosen}.items():
            changes = merge(changes, nested(name, value))
        return resolve_with_init(self.method, self.preset, changes)

    def _seed(self) -> int | None:
        """None where the settings give it."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        if self.random_state is None and "training.seed" in (self.settings or {}):
            return None
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError as error:
            raise AsmilError(f"random_state = {self.random_state!r}: {error}") from None

    def _split(
        self, bags: list[Bag], targets: npt.NDArray[np.int64], seed: int
    ) -> tuple[LabeledBags, LabeledBags | None]:
        if self.validation_share == 0:
            return LabeledBags(BagList(bags), targets), None
        try:
            train, val = train_test_split(
                np.arange(len(bags)),
                test_size=self.validation_share,
                stratify=targets,
                random_state=seed,
            )
        except ValueError as error:
            raise AsmilError(f"validation_share = {self.validation_share}: {error}") from None
        parts = [LabeledBags(BagList([bags[i] for i in part]), targets[part]) for part in (train, val)]
        return parts[0], parts[1]


def _as_labels(labels: Any) -> npt.NDArray[Any]:
    """One class per bag; a column is flattened with scikit-learn's warning, and other targets are refused."""
    try:
        flat = np.asarray(column_or_1d(labels, warn=True))
    except ValueError as error:
        raise AsmilError(f"the labels are not a list with one class per bag ({error})") from None
    missing = np.array([value is None or value is pd.NA or value != value for value in flat.tolist()], dtype=bool)
    if missing.any():
        raise AsmilError(
            f"the label of bag {int(missing.argmax())} is missing (None or NaN); leave out bags without a label"
        )
    kind = type_of_target(flat)
    if kind not in ("binary", "multiclass"):
        raise AsmilError(
            f"the labels are {kind}, e.g. {flat[0]!r}; a classifier needs one class per bag: strings, integers or "
            "booleans"
        )
    return flat


def _as_bags(bags: Sequence[Any]) -> list[Bag]:
    return [bag if isinstance(bag, Bag) else Bag(_as_numbers(bag, i), id=f"bag {i}") for i, bag in enumerate(bags)]


def _as_numbers(bag: Any, number: int) -> Any:
    if isinstance(bag, torch.Tensor):
        return bag
    try:
        values = np.asarray(bag)
    except ValueError as error:
        raise AsmilError(f"bag {number}: it is not a table of tiles x features ({error})") from None
    if values.dtype.kind not in "fiub":
        raise AsmilError(f"bag {number}: its values are of type {values.dtype}; features must be numbers")
    return values
