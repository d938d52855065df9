"""Multi-label classification: every label of a slide is predicted separately."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.tasks import weighted
from asmil.tasks.base import Columns, TaskKind
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.prediction_format import Mask, Metric, PredictionFormat, Table, Truth, numbers
from asmil.tasks.weighted import mean_defined

THRESHOLD = 0.5


class MultiLabel:
    """A sigmoid and a binary cross-entropy for each of K labels."""

    kind: TaskKind = "multilabel"
    loss_name = "bce"
    joint = False

    def __init__(self, labels: Sequence[str]) -> None:
        if not labels:
            raise AsmilError("no slide has a label; a multi-label task needs at least one label that occurs")
        self.labels = tuple(labels)

    @property
    def n_outputs(self) -> int:
        """K."""
        return len(self.labels)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy, mean over bags and labels."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))

    def class_index(self, targets: Tensor) -> None:
        """A slide may have several labels or none, so there is no class."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """B x K."""
        return torch.sigmoid(logits.double())

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """Loss, macro-F1 at 0.5, and macro-AUC over the labels for which it is defined."""
        probabilities = np.asarray(self.probabilities(logits).numpy())
        return {
            "loss": float(self.loss(logits.double(), torch.as_tensor(targets))),
            "macro_f1": float(np.mean(label_f1(targets, probabilities))),
            "macro_auc": float(mean_defined(label_auc(targets, probabilities))),
        }

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """Macro-F1 + macro-AUC."""
        return (measures["macro_f1"] or 0.0) + (measures["macro_auc"] or 0.0)

    def columns(self, logits: Tensor) -> Columns:
        """`prob_<label>` for every label."""
        probabilities = np.asarray(self.probabilities(logits).numpy())
        return {f"prob_{name}": probabilities[:, i] for i, name in enumerate(self.labels)}

    @property
    def explained_names(self) -> tuple[str, ...]:
        """The labels."""
        return self.labels

    def explained_first(self, logits: Tensor) -> int:
        """The most probable label."""
        return int(logits.detach().argmax())

    def evidence(self, logits: Tensor, name: int) -> Tensor:
        """The log-odds of a label, which are its logit."""
        return logits[:, name]

    def shown(self, logits: Tensor, name: int) -> Tensor:
        """The probability of a label."""
        return torch.sigmoid(logits[:, name].double())

    def to_dict(self) -> dict[str, Any]:
        """The labels."""
        return {"kind": self.kind, "classes": list(self.labels)}


def label_f1(targets: npt.NDArray[Any], probabilities: Floats) -> Floats:
    """K values of F1 at a probability of 0.5; 0 for a label that neither occurs nor is predicted."""
    return _plain(targets, lambda present, weights: weighted.label_f1(present, probabilities >= THRESHOLD, weights))


def label_auc(targets: npt.NDArray[Any], probabilities: Floats) -> Floats:
    """K AUCs; nan for a label that all slides have, or none."""
    return _plain(targets, lambda present, weights: weighted.label_auc(present, probabilities, weights))


def label_format(labels: tuple[str, ...]) -> PredictionFormat:
    """Predictions of K labels: 0 or 1 in `target_<label>`, a probability in `prob_<label>`."""
    columns = tuple(f"target_{name}" for name in labels)

    def problems(table: Table) -> Iterator[tuple[Mask, str]]:
        for column in columns:
            yield np.asarray(~table[column].isin([0, 1])), f"has a {column} that is neither 0 nor 1; train again"

    return PredictionFormat(
        kind="multilabel",
        names=labels,
        truth_columns=columns,
        prediction_columns=tuple(f"prob_{name}" for name in labels),
        truth=lambda table: numbers(table, columns),
        target_columns=lambda targets: {column: targets[:, k] for k, column in enumerate(columns)},
        problems=problems,
        metrics=(
            Metric("macro_f1", "macro-F1", weighted_macro_f1, mean_of="f1"),
            Metric("macro_auc", "macro-AUC", weighted_macro_auc, mean_of="auc"),
            Metric("mean_ap", "mean average precision"),
        ),
        part_metrics=(
            Metric("auc", "AUC", edge="auc"),
            Metric("f1", "F1", edge="f1"),
            Metric("ap", "average precision"),
        ),
        measure=measure_labels,
        selected_by="macro-F1 + macro-AUC",
        part_name="label",
        are_probabilities=True,
        fewest_names=1,
        in_words=lambda targets, probabilities, values, unit: label_words(targets, probabilities),
        misfit=lambda targets, probabilities: np.abs(targets - probabilities).mean(axis=1),
        row_in_words=lambda target, probabilities, decided: (
            ", ".join(name for name, has in zip(labels, target, strict=True) if has > 0) or "none",
            ", ".join(f"{name} {p:.2f}" for name, p in zip(labels, probabilities, strict=True)),
        ),
    )


def label_words(targets: Truth, probabilities: Floats) -> str:
    """How many labels were missed, and how many absent labels were predicted."""
    present, called = targets > 0, probabilities >= THRESHOLD
    missed, wrong = int((present & ~called).sum()), int((called & ~present).sum())
    return f"missed {missed} of {int(present.sum())} labels and predicted {wrong} that are absent"


def measure_labels(targets: Truth, probabilities: Floats, weights: Floats) -> dict[str, Floats]:
    """R x K values of `auc`, `f1` and `ap`, and R means over the labels; targets, probabilities: n x K."""
    present = targets > 0
    auc = weighted.label_auc(present, probabilities, weights)
    ap = weighted.label_average_precision(present, probabilities, weights)
    f1 = weighted.label_f1(present, probabilities >= THRESHOLD, weights)
    return {
        "macro_auc": mean_defined(auc),
        "macro_f1": f1.mean(axis=1),
        "mean_ap": mean_defined(ap),
        "auc": auc,
        "f1": f1,
        "ap": ap,
    }


def weighted_macro_f1(targets: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """R means over labels of the F1 at 0.5."""
    return np.asarray(weighted.label_f1(targets > 0, probabilities >= THRESHOLD, weights).mean(axis=1))


def weighted_macro_auc(targets: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """R means of the AUC over the labels for which it is defined."""
    return mean_defined(weighted.label_auc(targets > 0, probabilities, weights))


def _plain(targets: npt.NDArray[Any], measure: Callable[[Mask, Floats], Floats]) -> Floats:
    present = np.asarray(targets) > 0
    return np.asarray(measure(present, np.ones((1, len(present))))[0])
