"""The base of the scikit-learn estimators over bags: settings, training by the common loop, tile maps, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.cohort.outcomes import Outcomes
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.files import write_json
from asmil.machine.arithmetic import exact_arithmetic
from asmil.machine.lazy_names import former_name
from asmil.models.base import MILModel
from asmil.models.blocks.standardize import fit_standardization
from asmil.models.inference import infer
from asmil.models.own_method import method_name
from asmil.reporting import jsonable
from asmil.runs.bundle import seal_bundle
from asmil.runs.checkpoint import save_checkpoint
from asmil.runs.config import RunConfig
from asmil.runs.description import RunDescription
from asmil.runs.layout import TASK_FILE
from asmil.runs.model import build_model
from asmil.runs.prediction import open_models
from asmil.runs.run import Run
from asmil.runs.task import build_task, task_names
from asmil.runs.trained_models import weights_file
from asmil.runs.writer import RunWriter
from asmil.settings.config import assign
from asmil.settings.documents import read_json
from asmil.tasks.base import Task, TaskKind
from asmil.training.initial_weights import read_initial_weights, resolve_with_init, try_initialization
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer

Weights = npt.NDArray[np.float64]
ESTIMATOR_FILE = "estimator.json"
"""In a saved estimator, beside the files of a bundle."""


class SavedEstimator(BaseModel):
    """What a saved estimator has besides the model and its settings; classes and dtype: of a classifier."""

    estimator: str
    parameters: dict[str, Any]
    selected_epoch: int
    classes: list[Any] | None = None
    dtype: str | None = None


@dataclass(eq=False, repr=False)
class BagEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator that learns from bags; subclasses define the task and the predictions.

    The fields are the parameters: scikit-learn reads their names from the constructor. Single settings are parameters,
    too, with two underscores for the dot: `set_params(training__weight_decay=0.01)`.
    """

    _kind: ClassVar[TaskKind]

    method: str | type[MILModel] = "abmil"
    preset: str = "paper"
    epochs: int | None = None
    lr: float | None = None
    settings: Mapping[str, Any] | None = None
    validation_share: float = 0.0
    device: str = "auto"
    random_state: int | np.random.RandomState | None = 0

    heatmap = former_name("heatmap", "tile_map")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; if `deep`, also each of the `settings`, e.g. `training__weight_decay`."""
        own: dict[str, Any] = super().get_params(deep=False)
        single = self.settings if deep and isinstance(self.settings, Mapping) else {}
        return own | {name.replace(".", "__"): value for name, value in single.items() if "." in name}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by their names, and settings by theirs: `set_params(lr=1e-4, model__dropout=0.1)`."""
        single = {name.replace("__", "."): params.pop(name) for name in list(params) if "__" in name}
        super().set_params(**params)
        if single:
            self.settings = {**(self.settings or {}), **single}
        return self

    def attention(self, bag: Any) -> npt.NDArray[np.float32]:
        """The attention of each tile of a bag: N values that sum to 1, from the method's own map."""
        check_is_fitted(self, "model_")
        if not self.model_.score_axes:
            kinds = ", ".join(repr(kind) for kind in self.model_.map_kinds)
            name = self.method if isinstance(self.method, str) else type(self.model_).__name__
            raise AsmilError(f"{name} has no attention; use tile_map(bag), which returns {kinds}")
        return self.tile_map(bag, "attention")

    def tile_map(self, bag: Any, kind: str | None = None) -> npt.NDArray[np.float32]:
        """One value per tile, as defined by the method's authors; `model_.map_kinds` lists the kinds."""
        check_is_fitted(self, "model_")
        output = infer(self.model_, self.model_.prepare(one_bag(bag)), self._device)
        return np.asarray(self.model_.tile_map(output, kind).float().numpy())

    def save(self, folder: Path | str) -> Path:
        """Write the fitted estimator into a new folder, without pickle, and return the folder.

        The folder is a bundle: `load` reads the estimator again; `asmil.load_run` and `asmil predict` use its model.
        """
        check_is_fitted(self, "model_")
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AsmilError(f"{folder} exists and is not empty; give a new folder")
        run = RunWriter(folder)
        training = run.training(0, self._trained_config.training.seed)
        run.begin(RunDescription(self._trained_config, task_names(self._task), {"width": self.n_features_in_}, {}))
        write_json(training / TASK_FILE, self._task.to_dict())
        state = {"method": self._trained_config.method, "epoch": self.selected_epoch_}
        save_checkpoint(weights_file(training), self.model_.state_dict(), state)
        write_json(folder / ESTIMATOR_FILE, self._saved().model_dump(mode="json"))
        seal_bundle(folder)
        return folder

    def _saved(self) -> SavedEstimator:
        parameters = {
            **super().get_params(deep=False),
            "method": self._trained_config.method,
            "random_state": self._trained_config.training.seed,
        }
        return SavedEstimator(
            estimator=type(self).__name__, parameters=jsonable(parameters), selected_epoch=self.selected_epoch_
        )

    @classmethod
    def load(cls, folder: Path | str, *, device: str = "auto", method: str | type[MILModel] | None = None) -> Self:
        """Read an estimator that `save` wrote.

        device: where the model is put
        method: the method, if it is your own code; see `asmil.load_run`
        """
        folder = Path(folder)
        saved = read_json(folder / ESTIMATOR_FILE, SavedEstimator, "give a folder that `save` of an estimator wrote")
        if saved.estimator != cls.__name__:
            raise AsmilError(f"{folder}: this is a {saved.estimator}; load it with {saved.estimator}.load")
        run = open_models(folder, device, None if method is None else method_name(method))
        estimator = cls(**{**saved.parameters, **({} if method is None else {"method": method})})
        estimator._restore(saved, run)
        return estimator

    def _restore(self, saved: SavedEstimator, run: Run) -> None:
        """Set the attributes of a fitted estimator."""
        (trained,) = run.trained
        self.n_features_in_ = run.description.in_features
        self.selected_epoch_ = saved.selected_epoch
        self._trained_config, self._device = run.description.config, run.device
        self.model_, self._task = trained.model, trained.task

    def _train(self, bags: list[Bag], outcomes: Outcomes, sample_weight: Any) -> None:
        """Train on bags; sets `model_`, `selected_epoch_` and the task."""
        config = self._config()
        weights = None if sample_weight is None else self._weights(sample_weight, bags)
        if weights is not None:
            if config.task.chosen_loss == "cox":
                raise AsmilError(
                    "sample_weight: the Cox loss compares the bags of a step and does not support weights; leave the "
                    "weights out, or choose the loss incidence or hazard"
                )
            # bags without weight are removed, so that they do not affect the order of the others
            kept = np.flatnonzero(weights)
            bags, outcomes, weights = [bags[i] for i in kept], outcomes.among(kept.tolist()), weights[kept]
            weights = None if np.ptp(weights) == 0 else weights / weights.mean()
        seed = config.training.seed
        kept_in, held_out = self._split(outcomes, seed)
        task = self._build_task(config, outcomes, kept_in)
        self._device = choose_device(config.training.device)
        model = build_model(config, bags[0].width, task.n_outputs, seed)
        if config.init.weights is not None:
            try_initialization(model, read_initial_weights(Path(config.init.weights)))
        fit_standardization(model, (bags[i].features for i in kept_in))
        trainer = Trainer(model, task, config, seed=seed, device=self._device)
        prepared = [model.prepare(bag) for bag in bags]
        train = _part(prepared, outcomes, kept_in, weights)
        val = _part(prepared, outcomes, held_out) if held_out else None
        self.selected_epoch_ = trainer.fit(train, val)
        self._trained_config = config
        self._task = trainer.completed_task(train)
        self.model_ = model

    def _build_task(self, config: RunConfig, outcomes: Outcomes, train: Sequence[int]) -> Task:
        return build_task(config, outcomes, train)

    @exact_arithmetic()
    def _logits(self, bags: Any) -> Tensor:
        """n x C logits."""
        check_is_fitted(self, "model_")
        ready = bags_for_prediction(self, bags)
        logits = [infer(self.model_, self.model_.prepare(bag), self._device).logits for bag in ready]
        return torch.stack(logits) if logits else torch.zeros(0, self._task.n_outputs)

    def _shorthands(self) -> dict[str, Any]:
        """The settings that correspond to parameters of the estimator; None if not given."""
        return {
            "task.kind": self._kind,
            "training.epochs": self.epochs,
            "training.lr": self.lr,
            "training.seed": self._seed(),
            "training.device": self.device,
        }

    def _config(self) -> RunConfig:
        chosen = {name: value for name, value in self._shorthands().items() if value is not None}
        own = self.settings or {}
        if not isinstance(own, Mapping):
            raise AsmilError(f"settings = {own!r}: give a dictionary with dotted setting names as keys")
        twice = sorted(chosen.keys() & own.keys())
        if twice:
            raise AsmilError(f"settings[{twice[0]!r}] is already set by {type(self).__name__}; leave it out")
        config = resolve_with_init(self.method, self.preset, assign({}, {**own, **chosen}))
        if config.data.covariates:
            raise AsmilError("settings['data.covariates']: an estimator has no manifest; use asmil.train")
        return config

    def _seed(self) -> int | None:
        """The seed, or None if the settings contain it."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        if self.random_state is None and "training.seed" in (self.settings or {}):
            return None
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError as error:
            raise AsmilError(f"random_state = {self.random_state!r}: {error}") from None

    def _split(self, outcomes: Outcomes, seed: int) -> tuple[list[int], list[int]]:
        """The indices of the bags to train on, and of the validation bags that select the epoch."""
        everyone = np.arange(len(outcomes.targets))
        if self.validation_share == 0:
            return everyone.tolist(), []
        size = {"test_size": self.validation_share, "random_state": seed}
        try:
            train, val = train_test_split(everyone, stratify=outcomes.strata, **size)
        except ValueError as error:
            if outcomes.needed:
                raise AsmilError(f"validation_share = {self.validation_share}: {error}") from None
            # too few bags for a share of every group of values: use any bags
            train, val = train_test_split(everyone, **size)
        return train.tolist(), val.tolist()

    def _weights(self, sample_weight: Any, bags: Sequence[Bag]) -> Weights:
        try:
            weights = np.asarray(_check_sample_weight(sample_weight, bags, dtype=np.float64, ensure_non_negative=True))
        except ValueError as error:
            raise AsmilError(f"sample_weight: {error}") from None
        if not weights.any():
            raise AsmilError("sample_weight: all weights are 0, so there is no bag to train on")
        return weights


def refuse_different_lengths(bags: Sequence[Bag], targets: npt.NDArray[Any], name: str) -> None:
    """Raise unless there is one target per bag, and more than one bag."""
    if len(bags) == 0 or len(bags) != len(targets):
        raise AsmilError(f"{len(bags)} bags and {len(targets)} {name}s; give one {name} per bag, and at least two bags")
    if len(bags) == 1:
        raise AsmilError("there is one bag (n_samples = 1); training needs at least two bags")


def _part(
    bags: Sequence[Bag], outcomes: Outcomes, indices: Sequence[int], weights: Weights | None = None
) -> LabeledBags:
    chosen = outcomes.among(indices)
    return LabeledBags(
        BagList([bags[i] for i in indices]),
        chosen.targets,
        chosen.strata,
        chosen.stratum_names,
        None if weights is None else weights[list(indices)],
    )


def bags_for_fit(estimator: BaseEstimator, given: Any) -> list[Bag]:
    """The bags that an estimator is fitted to; sets its `n_features_in_` (and `feature_names_in_` for a data frame).

    A list of N x D tables, or a 3D array, contains one bag per entry; a 2D array, data frame or list contains bags of
    one tile each, one per row, which scikit-learn checks.
    """
    if hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
    if _is_one_table(given):
        return _one_tile_bags(estimator, given, reset=True)
    bags = _as_bags(given)
    if bags:
        estimator.n_features_in_ = bags[0].width
    return bags


def bags_for_prediction(estimator: BaseEstimator, given: Any) -> list[Bag]:
    """The bags to predict, with as many features as those of the fit."""
    if _is_one_table(given):
        return _one_tile_bags(estimator, given, reset=False)
    bags = _as_bags(given)
    for bag in bags:
        if bag.width != estimator.n_features_in_:
            raise AsmilError(
                f"{bag.id}: its tiles have {bag.width} features, but {type(estimator).__name__} is expecting "
                f"{estimator.n_features_in_} features as input"
            )
    return bags


def one_bag(given: Any) -> Bag:
    """A single bag: a table N x D or a `Bag`."""
    (bag,) = _as_bags([given])
    return bag


def _one_tile_bags(estimator: BaseEstimator, given: Any, *, reset: bool) -> list[Bag]:
    given = given.numpy(force=True) if isinstance(given, torch.Tensor) else given
    rows = validate_data(estimator, given, reset=reset)
    return [Bag(rows[i : i + 1], id=f"bag {i}") for i in range(len(rows))]


def _is_one_table(given: Any) -> bool:
    """Whether this is one table with a row per bag, or not a list of tables at all (then scikit-learn raises)."""
    if isinstance(given, list | tuple):
        return len(given) > 0 and _depth(given[0]) < 2
    if not hasattr(given, "ndim") and hasattr(given, "__array__"):
        given = np.asarray(given)
    if getattr(given, "ndim", 0) == 1 and str(getattr(given, "dtype", "")) == "object" and len(given):
        return _depth(next(iter(given))) < 2
    return not isinstance(given, Sequence) and getattr(given, "ndim", 0) != 3


def _depth(value: Any) -> int:
    """Number of axes of a value; for nested lists, judged by their first elements."""
    if isinstance(value, Bag):
        return 2
    if hasattr(value, "ndim"):
        return int(value.ndim)
    if isinstance(value, list | tuple):
        return 1 + (_depth(value[0]) if value else 0)
    return 0


def _as_bags(bags: Any) -> list[Bag]:
    return [bag if isinstance(bag, Bag) else Bag(_as_numbers(bag, i), id=f"bag {i}") for i, bag in enumerate(bags)]


def _as_numbers(bag: Any, number: int) -> Any:
    if isinstance(bag, torch.Tensor):
        return bag
    try:
        values = np.asarray(bag)
    except ValueError as error:
        raise AsmilError(f"bag {number}: not a table of tiles x features ({error})") from None
    if values.dtype.kind not in "fiub":
        raise AsmilError(f"bag {number}: the values have the type {values.dtype}; features must be numbers")
    return values
