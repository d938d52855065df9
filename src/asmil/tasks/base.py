"""The interface of a task: its loss, its predictions as columns of a table, and the metrics that evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asmil.tables.arrays import Booleans, Floats

TaskKind = Literal["classification", "survival", "regression", "multilabel"]

Columns = dict[str, list[Any] | npt.NDArray[np.generic]]
Truth = npt.NDArray[Any]
Table = Any
"""A table with named columns, such as a pandas DataFrame."""
MetricFunction = Callable[[Truth, Floats, Floats], Floats]
"""From truth (n, or n x T), prediction (n x C) and R x n weights to R values; undefined values are nan."""


class Task(Protocol):
    """Turns the logits of models into losses and predictions; independent of bags and methods.

    The defaults are those of a task that predicts one number.

    Targets for B bags are class indices (B), values (B), labels of 0 and 1 (B x K), or times and events (B x 2).
    """

    kind: TaskKind
    loss_name: str
    """Name of the loss in `metrics.jsonl`."""
    joint: bool = False
    """Whether the loss compares the bags of a step with each other, so that it needs all of them at once."""

    @property
    def n_outputs(self) -> int:
        """Number of logits that a model must return."""
        ...

    @property
    def directions(self) -> Floats:
        """C x R: the directions in which the inputs of a linear model move the logits; by default each logit."""
        return np.eye(self.n_outputs)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the bags of a step: logits B x C."""
        ...

    def loss_terms(self, targets: Tensor) -> int:
        """The number of terms that `loss` is the mean of."""
        return len(targets)

    def unfitted(self) -> Task:
        """The task without what was fitted on training bags, the same in all folds: takes `unfitted_targets`."""
        return self

    def unfitted_targets(self, targets: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Targets for which the loss of `unfitted()` is the loss of this task."""
        return targets

    def class_index(self, targets: Tensor) -> Tensor | None:
        """The classes of the bags, for losses that treat each class separately; None if targets are not classes."""
        return None

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """Metrics of validation bags, including `loss`; undefined metrics are nan."""
        ...

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """The score that selects the epoch (highest wins), from the metrics of `measure`; undefined ones count as 0."""
        ...

    def probabilities(self, logits: Tensor) -> Tensor | None:
        """B x K probabilities of the classes or labels; None for tasks without probabilities."""
        return None

    def columns(self, logits: Tensor) -> Columns:
        """The predictions as columns of a table, one value per bag."""
        ...

    @property
    def explained_names(self) -> tuple[str, ...]:
        """The outputs that can be explained: the classes or labels, or the single predicted number."""
        ...

    def explained_first(self, logits: Tensor) -> int:
        """Index into `explained_names` of the default: the predicted class; logits C."""
        return 0

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        """B numbers that explanations attribute to tiles, with gradient: log-odds of a class, a risk or a value."""
        ...

    def shown(self, logits: Tensor, name: int) -> Tensor:
        """The same output in the form shown to users: probability of a class, a risk or a value; B numbers."""
        return self.evidence(logits.double(), name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which the task can be rebuilt."""
        ...


class NamedTask(Task):
    """What the tasks with a probability for each of K classes or labels share."""

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """Macro-F1 + macro-AUC."""
        return (measures["macro_f1"] or 0.0) + (measures["macro_auc"] or 0.0)

    def columns(self, logits: Tensor) -> Columns:
        """`prob_<name>` for every class or label."""
        probabilities = self.probabilities(logits)
        assert probabilities is not None
        return {f"prob_{name}": probabilities.numpy()[:, i] for i, name in enumerate(self.explained_names)}

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "classes": list(self.explained_names)}


@dataclass(frozen=True)
class Metric:
    """A number about predictions.

    function: by which `asmil compare` compares runs; None: they are not compared by this metric
    joins_folds: whether predictions of the models of several folds may be ranked together
    paired_test: the test that compares the seed ensembles of two runs, if there is one
    scale: the range on which reports draw the metric; None if it has none
    in_terminal: whether terminal tables show the metric
    mean_of: the metric of single classes or labels whose mean this is
    edge: how its interval is found if a bootstrap collapses, see `tasks/intervals.py`: a proportion of the patients
        of all classes, of the class, of the rest or of those predicted as the class; None: not at all
    """

    name: str
    title: str
    function: MetricFunction | None = None
    larger_is_better: bool = True
    joins_folds: bool = True
    paired_test: Literal["delong", "permutation"] | None = None
    scale: tuple[float, float] | None = (0.0, 1.0)
    in_terminal: bool = True
    mean_of: str = ""
    edge: Literal["all", "class", "rest", "called", "f1", "auc"] | None = None


@dataclass(frozen=True)
class PredictionFormat:
    """The predictions of one task with its classes or labels.

    names: classes or labels, at least `fewest_names`; none for values and times
    truth_columns, prediction_columns: their columns in a table of predictions
    truth: from a table to the truth: n class indices, n values, n x K labels, or n x 2 times and events
    target_columns: from such a truth to the columns
    problems: errors in the truth of rows, each as a mask and a phrase
    metrics: of all slides; part_metrics: of every class or label
    measure: all metrics at once, by name: R values, or R x K
    counts: which of R sets of weights can be evaluated; None: all of them
    are_probabilities: whether predictions are between 0 and 1
    may_be_infinite: whether a prediction may be infinite, such as the risk of a curve that never falls
    selected_by: the metric that selects the epoch on validation slides
    part_name: the name of the K columns, "class" or "label"; empty if there are none
    by_patient: whether each row is a patient
    in_words: from truth, predictions, the values of the metrics and what a row is (slide or patient) to the main
        result, as a phrase that follows the name of a run
    misfit: the error of each prediction; None if single predictions cannot be evaluated, as with censored times
    row_in_words: the truth and the prediction of one row as text, from its truth, its prediction, and its prediction
        as classes are predicted from it
    """

    kind: TaskKind
    names: tuple[str, ...]
    truth_columns: tuple[str, ...]
    prediction_columns: tuple[str, ...]
    truth: Callable[[Table], Truth]
    target_columns: Callable[[Truth], Columns]
    problems: Callable[[Table], Iterator[tuple[Booleans, str]]]
    metrics: tuple[Metric, ...]
    selected_by: str
    part_metrics: tuple[Metric, ...] = ()
    measure: Callable[[Truth, Floats, Floats], Mapping[str, Floats]] | None = None
    counts: Callable[[Truth, Floats], Booleans] | None = None
    are_probabilities: bool = False
    may_be_infinite: bool = False
    part_name: str = ""
    fewest_names: int = 0
    by_patient: bool = False
    in_words: Callable[[Truth, Floats, Mapping[str, float], str], str] | None = None
    misfit: Callable[[Truth, Floats], Floats] | None = None
    row_in_words: Callable[[Any, Floats, Floats], tuple[str, str]] | None = None

    def predictions(self, table: Table) -> Floats:
        """n x C predicted numbers of a table."""
        return numbers(table, self.prediction_columns)

    @property
    def number_columns(self) -> tuple[str, ...]:
        """The columns that must contain numbers; the names of classes are text."""
        return self.prediction_columns if self.part_name == "class" else (*self.truth_columns, *self.prediction_columns)

    def memberships(self, truth: Truth) -> Booleans:
        """n x K: which slides have which class or label; K is 0 for values and times."""
        return np.asarray(truth > 0 if self.part_name == "label" else truth[:, None] == np.arange(len(self.names)))

    def known(self, truth: Truth) -> Booleans:
        """n x K: of which slides each class or label is known; labels may be unknown."""
        shape = (len(truth), len(self.names))
        return ~np.isnan(truth) if self.part_name == "label" else np.ones(shape, dtype=np.bool_)

    def collapsed(self, truth: Truth, predictions: Floats, unit: str = "slide") -> str:
        """A sentence if all predictions are the same although the targets differ; empty otherwise."""
        if len(truth) < 2 or not np.ptp(truth, axis=0).any():
            return ""
        if self.part_name == "class":
            called = np.unique(predictions.argmax(axis=1))
            return f"Every {unit} is predicted as {self.names[called[0]]}." if len(called) == 1 else ""
        return "" if np.ptp(predictions, axis=0).any() else "All predictions are the same."

    @property
    def has_threshold(self) -> bool:
        """Whether a threshold on one probability decides the class, which is so for two classes."""
        return self.part_name == "class" and len(self.names) == 2

    @property
    def compared(self) -> tuple[Metric, ...]:
        """The metrics by which runs are compared."""
        return tuple(metric for metric in self.metrics if metric.function is not None)


def numbers(table: Table, columns: tuple[str, ...]) -> Floats:
    """Columns of a table as n x C numbers."""
    return np.asarray(table[list(columns)].to_numpy(dtype=np.float64))
