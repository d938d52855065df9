"""Classification: one of K classes per slide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError, did_you_mean
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks import metrics, weighted
from asmil.tasks.base import Metric, NamedTask, PredictionFormat, Table, TaskKind, Truth

NORMAL_NAMES = frozenset(
    {"normal", "negative", "neg", "benign", "healthy", "no tumor", "non tumor", "nontumor", "tumor free", "control"}
    | {"0"}
)


class Classification(NamedTask):
    """Softmax over K classes and cross-entropy; for two classes also a single output with a sigmoid.

    class_weights: K weights of the loss of a slide, by its class (None: all 1)
    """

    kind: TaskKind = "classification"
    loss_name = "ce"

    def __init__(
        self,
        classes: Sequence[str],
        class_weights: Sequence[float] | None = None,
        single_output: bool = False,
    ) -> None:
        if len(classes) < 2:
            raise AsmilError(
                f"all labels are {classes[0]!r}; a classification needs at least two classes"
                if classes
                else "there are no labels; a classification needs at least two classes"
            )
        if single_output and len(classes) != 2:
            raise AsmilError(f"a single output can separate two classes, not {len(classes)}")
        self.classes = tuple(classes)
        self.single_output = single_output
        self._weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)

    @property
    def n_outputs(self) -> int:
        """K, or 1 for a single output."""
        return 1 if self.single_output else len(self.classes)

    @property
    def class_weights(self) -> tuple[float, ...]:
        """The weight of the loss of a slide, by its class."""
        return (1.0,) * len(self.classes) if self._weights is None else tuple(self._weights.tolist())

    def weigh(self, class_weights: Tensor) -> None:
        """Use these K weights from now on."""
        self._weights = class_weights

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean (weighted) cross-entropy; logits B x C, targets B class indices.

        The weights are not normalized per step: the loss of a step with one bag is scaled too.
        """
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.single_output:
            per_slide = functional.binary_cross_entropy_with_logits(
                logits[:, 0], targets.to(logits.dtype), reduction="none"
            )
        else:
            per_slide = functional.cross_entropy(logits, targets, reduction="none")
        if self._weights is not None:
            self._weights = self._weights.to(logits.device)  # moved once: a copy in every step would block the GPU
            per_slide = per_slide * self._weights.to(logits.dtype)[targets]
        return per_slide.mean() if len(per_slide) > 1 else per_slide.squeeze(0)

    def class_index(self, targets: Tensor) -> Tensor:
        return targets

    def probabilities(self, logits: Tensor) -> Tensor:
        """B x K class probabilities from B x C logits, in float64 so that rows sum to 1 to the last digit."""
        logits = logits.double()
        if self.single_output:
            positive = torch.sigmoid(logits[:, 0])
            return torch.stack([1 - positive, positive], dim=1)
        return torch.softmax(logits, dim=-1)

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """The metrics that are monitored during training."""
        probabilities = self.probabilities(logits).numpy()
        predicted = metrics.predicted_classes(probabilities)
        return {
            "loss": metrics.cross_entropy(targets, probabilities),
            "macro_f1": metrics.macro_f1(targets, predicted, len(self.classes)),
            "macro_auc": metrics.macro_auc(targets, probabilities),
            "accuracy": metrics.accuracy(targets, predicted),
        }

    @property
    def explained_names(self) -> tuple[str, ...]:
        return self.classes

    def explained_first(self, logits: Tensor) -> int:
        """The most probable class."""
        return int(self.probabilities(logits.detach()[None])[0].argmax())

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        """The log-odds of a class, `z_k - log sum_{j != k} exp(z_j)`."""
        if self.single_output:
            return logits[:, 0] if name == 1 else -logits[:, 0]
        others = [index for index in range(len(self.classes)) if index != name]
        return logits[:, name] - logits[:, others].logsumexp(dim=1)

    def shown(self, logits: Tensor, name: int) -> Tensor:
        """The probability of a class."""
        return self.probabilities(logits)[:, name]


def balanced_weights(targets: Sequence[int], n_classes: int) -> list[float]:
    """`n / (K n_k)` for class k: all classes have the same total weight, and the mean weight of a slide is 1."""
    counts = np.bincount(np.asarray(targets), minlength=n_classes)
    return [float(len(targets) / (n_classes * count)) if count else 0.0 for count in counts]


def class_format(classes: tuple[str, ...]) -> PredictionFormat:
    """Predictions of K classes: the true class in `target`, one probability per class in `prob_<class>`."""
    index_of = {name: index for index, name in enumerate(classes)}

    def truth(table: Table) -> Truth:
        return np.array([index_of[str(name)] for name in table["target"]], dtype=np.intp)

    def problems(table: Table) -> Iterator[tuple[Booleans, str]]:
        named = np.array([str(name) for name in table["target"]])
        yield ~np.isin(named, classes), f"has a target that is not among the classes {', '.join(classes)}"

    return PredictionFormat(
        kind="classification",
        names=classes,
        truth_columns=("target",),
        prediction_columns=tuple(f"prob_{name}" for name in classes),
        truth=truth,
        target_columns=lambda targets: {"target": [classes[target] for target in targets]},
        problems=problems,
        metrics=(
            Metric("macro_f1", "macro-F1", weighted_macro_f1, paired_test="permutation", mean_of="f1"),
            Metric("macro_auc", "macro-AUC", weighted_macro_auc, paired_test="delong", mean_of="auc"),
            Metric("balanced_accuracy", "balanced accuracy", mean_of="recall"),
            Metric("accuracy", "accuracy", edge="all"),
        ),
        part_metrics=(
            Metric("precision", "precision", edge="called"),
            Metric("recall", "recall", edge="class"),
            Metric("specificity", "specificity", edge="rest"),
            Metric("f1", "F1", edge="f1"),
            Metric("auc", "AUC", edge="auc"),
            Metric("ap", "AP", in_terminal=False),
        ),
        measure=measure_classes,
        counts=lambda target, weights: weighted.has_two_classes(target, len(classes), weights),
        selected_by="macro-F1 + macro-AUC",
        part_name="class",
        are_probabilities=True,
        fewest_names=2,
        in_words=lambda target, probabilities, values, unit: class_words(classes, target, probabilities, unit),
        misfit=lambda target, probabilities: 1 - probabilities[np.arange(len(target)), target],
        row_in_words=lambda target, probabilities, decided: (
            classes[int(target)],
            f"{classes[int(decided.argmax())]} ({probabilities[int(decided.argmax())]:.2f})",
        ),
    )


def class_words(classes: tuple[str, ...], target: Truth, probabilities: Floats, unit: str = "slide") -> str:
    """How many slides (or patients) of each class were missed; for more than two classes, the class missed most often.

    >>> class_words(("normal", "tumor"), np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    'missed 1 of 2 tumor slides and called 0 of 1 normal slides tumor'
    """
    wrong = metrics.predicted_classes(probabilities) != target
    missed = {name: (int(wrong[target == k].sum()), int((target == k).sum())) for k, name in enumerate(classes)}
    if not wrong.any():
        return f"predicted all {len(target)} {unit}s correctly"
    if len(classes) == 2:
        (false_alarms, negatives), (misses, positives) = missed.values()
        return (
            f"missed {misses} of {positives} {classes[1]} {unit}s and called {false_alarms} of {negatives} "
            f"{classes[0]} {unit}s {classes[1]}"
        )
    worst = max(classes, key=lambda name: missed[name][0] / max(1, missed[name][1]))
    return (
        f"predicted {int((~wrong).sum())} of {len(target)} {unit}s correctly and missed {worst} most often "
        f"({missed[worst][0]} of {missed[worst][1]} {unit}s)"
    )


def measure_classes(target: Truth, probabilities: Floats, weights: Floats) -> dict[str, Floats]:
    """Every metric under R sets of slide weights: R values, or R x K for metrics of single classes."""
    predicted = metrics.predicted_classes(probabilities)
    confusion = weighted.weighted_confusion(target, predicted, probabilities.shape[1], weights)
    auc = weighted.weighted_auc(target, probabilities, weights)
    f1 = weighted.f1_scores(confusion)
    return {
        "macro_f1": f1.mean(axis=1),
        "macro_auc": weighted.mean_defined(auc),
        "balanced_accuracy": weighted.balanced_accuracies(confusion),
        "accuracy": weighted.accuracies(confusion),
        "precision": weighted.precisions(confusion),
        "recall": weighted.recalls(confusion),
        "specificity": weighted.specificities(confusion),
        "f1": f1,
        "auc": auc,
        "ap": weighted.weighted_average_precision(target, probabilities, weights),
    }


def weighted_macro_f1(target: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """R means of F1 over all K classes; the predicted class is the most probable one."""
    n_classes = probabilities.shape[1]
    confusion = weighted.weighted_confusion(target, metrics.predicted_classes(probabilities), n_classes, weights)
    return np.asarray(weighted.f1_scores(confusion).mean(axis=1))


def weighted_macro_auc(target: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """R means of the one-vs-rest AUCs over the classes for which it is defined."""
    return weighted.mean_defined(weighted.weighted_auc(target, probabilities, weights))


def normal_labels(labels: Iterable[str], given: Sequence[str] = ()) -> frozenset[str]:
    """The labels of normal slides: those given by the user, else those with a common name; may be empty.

    A slide without annotation does not count as normal.
    """
    known = set(labels)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise AsmilError(f"--normal {unknown[0]}: no slide has this label; {did_you_mean(unknown[0], known)}")
    if given:
        return frozenset(given)
    return frozenset(
        label for label in known if label.strip().lower().replace("_", " ").replace("-", " ") in NORMAL_NAMES
    )
