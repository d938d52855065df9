"""Classification: one of K classes a slide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.tasks import metrics
from asmil.tasks.base import Columns, TaskKind


class Classification:
    """Softmax over K classes and cross-entropy; for two classes also a single output with a sigmoid.

    class_weights: K factors of the loss of a slide, by its class (None: all 1)
    """

    kind: TaskKind = "classification"
    loss_name = "ce"
    joint = False

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
            raise AsmilError(f"a single output can tell two classes apart, not {len(classes)}")
        self.classes = tuple(classes)
        self.single_output = single_output
        self._weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)

    @property
    def n_outputs(self) -> int:
        """K, or 1 for a single output."""
        return 1 if self.single_output else len(self.classes)

    @property
    def class_weights(self) -> tuple[float, ...]:
        """The factor of the loss of a slide, by its class."""
        return (1.0,) * len(self.classes) if self._weights is None else tuple(self._weights.tolist())

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean (weighted) cross-entropy; logits B x C, targets B class indices.

        A slide counts with the weight of its class as it is: the loss of a step with one bag is scaled too.
        """
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.single_output:
            per_slide = functional.binary_cross_entropy_with_logits(
                logits[:, 0], targets.to(logits.dtype), reduction="none"
            )
        else:
            per_slide = functional.cross_entropy(logits, targets, reduction="none")
        if self._weights is not None:
            per_slide = per_slide * self._weights.to(logits)[targets]
        return per_slide.mean()

    def class_index(self, targets: Tensor) -> Tensor:
        """The targets, which are class indices."""
        return targets

    def probabilities(self, logits: Tensor) -> Tensor:
        """B x K class probabilities from B x C logits, in float64 so that rows sum to 1 to the last digit."""
        logits = logits.double()
        if self.single_output:
            positive = torch.sigmoid(logits[:, 0])
            return torch.stack([1 - positive, positive], dim=1)
        return torch.softmax(logits, dim=-1)

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """The metrics that are watched while training."""
        probabilities = self.probabilities(logits).numpy()
        predicted = metrics.predicted_classes(probabilities)
        return {
            "loss": metrics.cross_entropy(targets, probabilities),
            "macro_f1": metrics.macro_f1(targets, predicted, len(self.classes)),
            "macro_auc": metrics.macro_auc(targets, probabilities),
            "accuracy": metrics.accuracy(targets, predicted),
        }

    def selection_score(self, measures: Mapping[str, float | None]) -> float:
        """Macro-F1 + macro-AUC."""
        return (measures["macro_f1"] or 0.0) + (measures["macro_auc"] or 0.0)

    def columns(self, logits: Tensor) -> Columns:
        """`prob_<class>` for every class."""
        probabilities = self.probabilities(logits).numpy()
        return {f"prob_{name}": probabilities[:, i] for i, name in enumerate(self.classes)}

    def to_dict(self) -> dict[str, Any]:
        """The classes."""
        return {"kind": self.kind, "classes": list(self.classes)}


def balanced_weights(targets: Sequence[int], n_classes: int) -> list[float]:
    """`n / (K n_k)` for class k: rare classes count as much as frequent ones, and the mean weight of a slide is 1."""
    counts = np.bincount(np.asarray(targets), minlength=n_classes)
    return [float(len(targets) / (n_classes * count)) if count else 0.0 for count in counts]
