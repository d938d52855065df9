"""Multi-label classification: every label of a slide is a question of its own."""

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
from asmil.tasks.weighted import mean_defined

Floats = npt.NDArray[np.float64]

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

    def probabilities(self, logits: Tensor) -> Floats:
        """B x K."""
        return np.asarray(torch.sigmoid(logits.double()).numpy())

    def measure(self, targets: npt.NDArray[Any], logits: Tensor) -> dict[str, float]:
        """Loss, macro-F1 at 0.5, and macro-AUC over the labels for which it is defined."""
        probabilities = self.probabilities(logits)
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
        probabilities = self.probabilities(logits)
        return {f"prob_{name}": probabilities[:, i] for i, name in enumerate(self.labels)}

    def to_dict(self) -> dict[str, Any]:
        """The labels."""
        return {"kind": self.kind, "classes": list(self.labels)}


def label_f1(targets: npt.NDArray[Any], probabilities: Floats, threshold: float = THRESHOLD) -> Floats:
    """K values of F1, a label being called from `threshold` on; 0 for one that neither occurs nor is called."""
    called, present = probabilities >= threshold, np.asarray(targets) > 0
    both = (called & present).sum(axis=0)
    either = called.sum(axis=0) + present.sum(axis=0)
    return np.asarray(np.where(either > 0, 2 * both / np.maximum(either, 1), 0.0))


def label_auc(targets: npt.NDArray[Any], probabilities: Floats) -> Floats:
    """K areas under the ROC curve; nan for a label that all slides have, or none."""
    present = (np.asarray(targets) > 0).astype(np.int64)
    columns = [
        metrics.auc_per_class(present[:, k], np.stack([1 - probabilities[:, k], probabilities[:, k]], axis=1))[1]
        for k in range(present.shape[1])
    ]
    return np.array(columns)
