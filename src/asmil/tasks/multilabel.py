"""Multi-label classification: every label of a slide is predicted separately."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.tables.arrays import Booleans, Floats
from asmil.tasks import weighted
from asmil.tasks.base import Metric, NamedTask, PredictionFormat, Table, TaskKind, Truth, numbers
from asmil.tasks.weighted import mean_defined

THRESHOLD = 0.5


class MultiLabel(NamedTask):
    """A sigmoid and a binary cross-entropy for each of K labels."""

    kind: TaskKind = "multilabel"
    loss_name = "bce"

    def __init__(self, labels: Sequence[str]) -> None:
        if not labels:
            raise AsmilError("no slide has a label; a multi-label task needs at least one label that occurs")
        self.labels = tuple(labels)

    @property
    def n_outputs(self) -> int:
        return len(self.labels)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy, mean over bags and labels; unknown labels (nan) do not count."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if not targets.is_floating_point():
            return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
        known = ~targets.isnan()
        wanted = targets.nan_to_num().to(logits.dtype)
        total = functional.binary_cross_entropy_with_logits(logits, wanted, known.to(logits.dtype), reduction="sum")
        return total / known.sum().clamp(min=1)

    def loss_terms(self, targets: Tensor) -> int:
        return int((~targets.isnan()).sum())

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits.double())

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """Loss, macro-F1 at 0.5, and macro-AUC over the labels for which it is defined."""
        probabilities = np.asarray(self.probabilities(logits).numpy())
        each = (targets, probabilities, np.ones((1, len(targets))))
        return {
            "loss": float(self.loss(logits.double(), torch.as_tensor(targets))),
            "macro_f1": float(weighted_macro_f1(*each)[0]),
            "macro_auc": float(weighted_macro_auc(*each)[0]),
        }

    @property
    def explained_names(self) -> tuple[str, ...]:
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


def label_format(labels: tuple[str, ...]) -> PredictionFormat:
    """Predictions of K labels: 0, 1 or nan (unknown) in `target_<label>`, a probability in `prob_<label>`."""
    columns = tuple(f"target_{name}" for name in labels)

    def problems(table: Table) -> Iterator[tuple[Booleans, str]]:
        for column in columns:
            unknown = table[column].isna()
            bad = ~table[column].isin([0, 1]) & (~unknown | unknown.all())
            yield np.asarray(bad), f"has a {column} that is neither 0 nor 1; train again"

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
        misfit=lambda targets, probabilities: np.nanmean(np.abs(targets - probabilities), axis=1),
        row_in_words=lambda target, probabilities, decided: (
            ", ".join(
                f"{name} unknown" if np.isnan(has) else name
                for name, has in zip(labels, target, strict=True)
                if not has <= 0
            )
            or "none",
            ", ".join(f"{name} {p:.2f}" for name, p in zip(labels, probabilities, strict=True)),
        ),
    )


def label_words(targets: Truth, probabilities: Floats) -> str:
    """How many labels were missed, and how many absent labels were predicted."""
    present, called = targets > 0, (probabilities >= THRESHOLD) & known_labels(targets)
    missed, wrong = int((present & ~called).sum()), int((called & ~present).sum())
    return f"missed {missed} of {int(present.sum())} labels and predicted {wrong} that are absent"


def measure_labels(targets: Truth, probabilities: Floats, weights: Floats) -> dict[str, Floats]:
    """R x K values of `auc`, `f1` and `ap`, and R means over the labels; targets, probabilities: n x K."""
    auc = _each_label(weighted.label_auc, targets, probabilities, weights)
    ap = _each_label(weighted.label_average_precision, targets, probabilities, weights)
    f1 = _each_f1(targets, probabilities, weights)
    return {
        "macro_auc": mean_defined(auc),
        "macro_f1": mean_defined(f1),
        "mean_ap": mean_defined(ap),
        "auc": auc,
        "f1": f1,
        "ap": ap,
    }


def weighted_macro_f1(targets: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """R means over labels of the F1 at 0.5."""
    return mean_defined(_each_f1(targets, probabilities, weights))


def weighted_macro_auc(targets: Truth, probabilities: Floats, weights: Floats) -> Floats:
    """R means of the AUC over the labels for which it is defined."""
    return mean_defined(_each_label(weighted.label_auc, targets, probabilities, weights))


def known_labels(targets: npt.NDArray[Any]) -> Booleans:
    """n x K: which labels of which slides are known, that is not nan."""
    return ~np.isnan(np.asarray(targets, dtype=np.float64))


def _each_label(
    measure: Callable[[Booleans, Any, Floats], Floats], targets: npt.NDArray[Any], predicted: Any, weights: Floats
) -> Floats:
    """R x K values of a metric, each over the slides whose label is known; nan if there are none."""
    known, present = known_labels(targets), np.asarray(targets) > 0
    if known.all():
        return measure(present, predicted, weights)
    values = np.full((len(weights), known.shape[1]), np.nan)
    for k, rows in enumerate(known.T):
        if rows.any():
            values[:, k] = measure(present[rows, k : k + 1], predicted[rows, k : k + 1], weights[:, rows])[:, 0]
    return values


def _each_f1(targets: npt.NDArray[Any], probabilities: Floats, weights: Floats) -> Floats:
    return _each_label(weighted.label_f1, targets, probabilities >= THRESHOLD, weights)
