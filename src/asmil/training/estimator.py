"""Scikit-learn estimators over bags: classification, regression, and survival."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from asmil.cohort.outcomes import Outcomes, value_strata
from asmil.errors import AsmilError
from asmil.reporting import jsonable
from asmil.runs.config import RunConfig
from asmil.runs.run import Run
from asmil.tables.arrays import Floats
from asmil.tasks.base import Task, TaskKind
from asmil.tasks.checked_arrays import checked_outcomes
from asmil.tasks.classification import Classification
from asmil.tasks.concordance import concordance
from asmil.tasks.regression import Regression
from asmil.tasks.survival import Survival
from asmil.tasks.survival_losses import FLOOR
from asmil.training.bag_estimator import BagEstimator, SavedEstimator, bags_for_fit, refuse_different_lengths

_EXAMPLE = "np.array([(True, 12.5), (False, 30.0)], dtype=[('event', bool), ('time', float)])"


@dataclass(eq=False, repr=False)
class MILClassifier(ClassifierMixin, BagEstimator):  # type: ignore[misc]
    """A classifier of bags, with scikit-learn's conventions.

    >>> draw = np.random.default_rng(0)
    >>> labels = ["normal", "tumor"] * 3
    >>> bags = [draw.normal(label == "tumor", size=(20, 8)) for label in labels]
    >>> classifier = MILClassifier(epochs=2).fit(bags, labels)
    >>> classifier.predict_proba(bags).shape
    (6, 2)

    Bags are arrays, tensors or data frames of N x D (any N, the same D), or `asmil.Bag`; there is one label per bag. A
    single 2D array is a table of one-tile bags, one per row.

    method, preset: as for `asmil train`; the method may also be your own subclass of `asmil.MILModel`
    epochs, lr: shorthands for the settings `training.epochs` and `training.lr`
    settings: further settings by their dotted names, e.g. {"model.attention": 64}; a search varies single ones with two
        underscores for the dot: GridSearchCV(MILClassifier(), {"lr": [1e-4, 3e-4], "model__attention": [64, 128]})
    validation_share: share of the training bags held out (stratified) to select the epoch; 0 keeps the last epoch
    random_state: the seed; None draws one from numpy's global state, so that every fit differs
    class_weight: None, "balanced", or a dictionary from class to loss weight, as in scikit-learn
    """

    _kind: ClassVar[TaskKind] = "classification"

    class_weight: str | Mapping[Any, float] | None = None

    def fit(self, bags: Any, y: Any = None, sample_weight: Any = None, *, labels: Any = None) -> MILClassifier:
        """Train on bags and their labels.

        sample_weight: relative weight of each bag in the loss; 0 leaves a bag out
        """
        if labels is not None:
            warnings.warn("the argument 'labels' is deprecated; use 'y'", DeprecationWarning, stacklevel=2)
            y = labels
        ready = bags_for_fit(self, bags)
        given = _as_labels(_present(y, self))
        refuse_different_lengths(ready, given, "label")
        self.classes_, targets = np.unique(given, return_inverse=True)
        names = tuple(str(name) for name in self.classes_)
        targets = targets.astype(np.int64)
        outcomes = Outcomes("classification", names, targets, targets, names, tuple(range(len(names))))
        self._train(ready, outcomes, sample_weight)
        return self

    def predict_proba(self, bags: Any) -> npt.NDArray[np.float64]:
        """Class probabilities, one row per bag, columns in the order of `classes_`."""
        logits = self._logits(bags)
        return np.asarray(cast(Classification, self._task).probabilities(logits).numpy())

    def predict(self, bags: Any) -> npt.NDArray[Any]:
        """The most probable class of every bag."""
        chosen = self.predict_proba(bags).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def _saved(self) -> SavedEstimator:
        saved = super()._saved()
        if isinstance(self.class_weight, Mapping):  # JSON would turn classes into strings
            saved.parameters["class_weight"] = [[jsonable(name), weight] for name, weight in self.class_weight.items()]
        return saved.model_copy(update={"classes": self.classes_.tolist(), "dtype": str(self.classes_.dtype)})

    def _restore(self, saved: SavedEstimator, run: Run) -> None:
        super()._restore(saved, run)
        self.classes_ = np.array(saved.classes, dtype=saved.dtype)
        if isinstance(self.class_weight, list):
            self.class_weight = dict(self.class_weight)

    def _build_task(self, config: RunConfig, outcomes: Outcomes, train: Sequence[int]) -> Task:
        if self.class_weight is None:
            return super()._build_task(config, outcomes, train)
        if config.training.class_weights != "none":
            raise AsmilError("class_weight and settings['training.class_weights'] are both given; give one of them")
        if isinstance(self.class_weight, Mapping) and not set(self.class_weight) <= set(self.classes_.tolist()):
            unknown = next(name for name in self.class_weight if name not in set(self.classes_.tolist()))
            raise AsmilError(f"class_weight: {unknown!r} is not among the classes {', '.join(outcomes.names)}")
        present = self.classes_[outcomes.targets[list(train)]]
        try:
            weights = compute_class_weight(self.class_weight, classes=self.classes_, y=present)
        except ValueError as error:
            raise AsmilError(f"class_weight = {self.class_weight!r}: {error}") from None
        return Classification(outcomes.names, weights.tolist())


@dataclass(eq=False, repr=False)
class EstimatorWithLoss(BagEstimator):
    """An estimator with a choice of losses, which depend on the task."""

    loss: str | None = None

    def _shorthands(self) -> dict[str, Any]:
        return {**super()._shorthands(), "task.loss": self.loss}


class MILRegressor(RegressorMixin, EstimatorWithLoss):  # type: ignore[misc]
    """A regressor of bags, with scikit-learn's conventions: one number per bag.

    >>> draw = np.random.default_rng(0)
    >>> y = draw.normal(size=6)
    >>> bags = [draw.normal(value, size=(20, 8)) for value in y]
    >>> MILRegressor(epochs=2).fit(bags, y).predict(bags).shape
    (6,)

    loss: squared or huber, in units of the standard deviation of the training values; a shorthand for `task.loss`

    Bags and the other parameters are as for `MILClassifier`.
    """

    _kind: ClassVar[TaskKind] = "regression"

    def fit(self, bags: Any, y: Any = None, sample_weight: Any = None) -> MILRegressor:
        """Train on bags and their values.

        sample_weight: relative weight of each bag in the loss; 0 leaves a bag out
        """
        ready = bags_for_fit(self, bags)
        values = _as_values(_present(y, self))
        refuse_different_lengths(ready, values, "value")
        self._train(ready, Outcomes("regression", (), values, *value_strata(values), ()), sample_weight)
        return self

    def predict(self, bags: Any) -> Floats:
        """The value of every bag."""
        logits = self._logits(bags)
        return cast(Regression, self._task).values(logits)


class MILSurvival(EstimatorWithLoss):
    """A survival model of bags, with the conventions of scikit-survival (which need not be installed).

    >>> draw = np.random.default_rng(0)
    >>> time = draw.uniform(1, 60, size=12)
    >>> y = np.array([(True, value) for value in time], dtype=[("event", bool), ("time", float)])
    >>> bags = [draw.normal(30 / value, size=(20, 8)) for value in time]
    >>> model = MILSurvival(epochs=2).fit(bags, y)
    >>> model.predict(bags).shape, model.predict_survival_function(bags)[0]([0.0, 1e6]).shape
    ((12,), (2,))

    `y` is a structured array with two fields: the event (boolean, True if observed) and the time.

    loss: incidence (default) or hazard, both in time bins, or cox; a shorthand for `task.loss`

    Bags and the other parameters are as for `MILClassifier`. Without `epochs`, `lr` and `settings`, training follows
    the survival defaults of `asmil train`.
    """

    _kind: ClassVar[TaskKind] = "survival"

    def fit(self, bags: Any, y: Any = None, sample_weight: Any = None) -> MILSurvival:
        """Train on bags and their events and times.

        sample_weight: relative weight of each bag in the loss; 0 leaves a bag out
        """
        ready = bags_for_fit(self, bags)
        targets = times_and_events(_present(y, self))
        refuse_different_lengths(ready, targets, "outcome")
        events = targets[:, 1].astype(np.int64)
        if not events.any():
            raise AsmilError("y: no event was observed; a survival model needs bags with an event")
        self._train(ready, Outcomes("survival", (), targets, events, ("censored", "event"), (1,)), sample_weight)
        self.unique_times_ = np.asarray(self._survival_task.survival_times)
        return self

    def _restore(self, saved: SavedEstimator, run: Run) -> None:
        super()._restore(saved, run)
        self.unique_times_ = np.asarray(self._survival_task.survival_times)

    def predict(self, bags: Any) -> Floats:
        """The risk of every bag; higher is worse."""
        logits = self._logits(bags)
        return self._survival_task.risks(logits)

    def predict_survival_function(self, bags: Any, return_array: bool = False) -> npt.NDArray[Any]:
        """The probability of no event up to a time: step functions, or n x T values at `unique_times_`."""
        survival = self._survival(bags)
        return survival if return_array else _step_functions(self.unique_times_, survival, before=1.0)

    def predict_cumulative_hazard_function(self, bags: Any, return_array: bool = False) -> npt.NDArray[Any]:
        """-log of the survival function, at most 16.1: survival is clamped to at least 1e-7, as in training."""
        hazard = -np.log(np.maximum(self._survival(bags), FLOOR))
        return hazard if return_array else _step_functions(self.unique_times_, hazard, before=0.0)

    def score(self, bags: Any, y: Any) -> float:
        """Harrell's concordance index of the predicted risks."""
        targets = times_and_events(_present(y, self))
        return concordance(targets[:, 0], targets[:, 1], self.predict(bags))

    def _survival(self, bags: Any) -> Floats:
        logits = self._logits(bags)
        survival = self._survival_task.survival(logits)
        assert survival is not None, "the task was completed after training"
        return survival

    @property
    def _survival_task(self) -> Survival:
        check_is_fitted(self, "model_")
        return cast(Survival, self._task)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _step_functions(times: Floats, values: Floats, before: float) -> npt.NDArray[Any]:
    functions = np.empty(len(values), dtype=object)
    for index, row in enumerate(values):
        functions[index] = StepFunction(times, row, before)
    return functions


def _present(y: Any, estimator: BagEstimator) -> Any:
    if y is None:
        raise AsmilError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    return y


def _flat(y: Any, what: str) -> npt.NDArray[Any]:
    """One entry per bag; a column is flattened with scikit-learn's warning, and missing entries are an error."""
    try:
        flat = np.asarray(column_or_1d(y, warn=True))
    except ValueError as error:
        raise AsmilError(f"give a list with one {what} per bag ({error})") from None
    missing = np.array([value is None or value is pd.NA or value != value for value in flat.tolist()], dtype=bool)
    if missing.any():
        raise AsmilError(
            f"the {what} of bag {int(missing.argmax())} is missing (None or NaN); leave out bags without a {what}"
        )
    return flat


def _as_labels(y: Any) -> npt.NDArray[Any]:
    """One class per bag; other targets are an error."""
    flat = _flat(y, "label")
    kind = type_of_target(flat)
    if kind not in ("binary", "multiclass"):
        raise AsmilError(
            f"Unknown label type: the labels are {kind}, e.g. {flat[0]!r}; a classifier needs one class per bag: "
            "strings, integers or booleans"
        )
    return flat


def _as_values(y: Any) -> Floats:
    """One finite number per bag."""
    flat = _flat(y, "value")
    try:
        values = flat.astype(np.float64)
    except (TypeError, ValueError):
        raise AsmilError(f"the values have the type {flat.dtype}; a regression needs one number per bag") from None
    if not np.isfinite(values).all():
        index = int(np.argmax(~np.isfinite(values)))
        raise AsmilError(f"the value of bag {index} is infinite (inf); leave this bag out")
    return values


def times_and_events(y: Any) -> Floats:
    """n x 2 times and events from a structured array whose two fields are the event (boolean) and the time.

    A data frame with the columns `event` and `time` is also accepted.
    """
    if isinstance(y, pd.DataFrame) and {"event", "time"} <= set(y.columns):
        event, time = y["event"].to_numpy(), y["time"].to_numpy()
    else:
        fields = getattr(getattr(y, "dtype", None), "names", None)
        if fields is None or len(fields) != 2:
            raise AsmilError(
                f"y is not a structured array with two fields, the event and the time; give e.g. {_EXAMPLE}"
            )
        event, time = y[fields[0]], y[fields[1]]
        if event.dtype != bool:
            raise AsmilError(
                f"y: its first field {fields[0]!r} has the type {event.dtype}, but it must be the event as a boolean; "
                f"give e.g. {_EXAMPLE}"
            )
    times, events = checked_outcomes(time, event)
    return np.column_stack([times, events.astype(np.float64)])


class StepFunction:
    """A step function with scikit-survival's interface: `y[k]` from `x[k]` on, `before` up to `x[0]`.

    >>> curve = StepFunction([1.0, 2.0], [0.8, 0.5], before=1.0)
    >>> curve([0.0, 1.5, 7.0]).tolist()
    [1.0, 0.8, 0.5]
    """

    def __init__(self, x: npt.ArrayLike, y: npt.ArrayLike, before: float) -> None:
        self.x = np.asarray(x, dtype=np.float64)
        self.y = np.asarray(y, dtype=np.float64)
        self.before = before

    @property
    def domain(self) -> tuple[float, float]:
        """From 0 to the last time; the function is constant after it."""
        return 0.0, float(self.x[-1])

    def __call__(self, times: npt.ArrayLike) -> Any:
        """The values at the given times; a single number for a single time."""
        steps = np.r_[self.before, self.y]
        return steps[np.searchsorted(self.x, np.asarray(times, dtype=np.float64), side="right")]

    def __repr__(self) -> str:
        return f"StepFunction(x={self.x!r}, y={self.y!r})"
