"""Multi-label runs: every label is a question of its own, with intervals by patient. n slides, K labels, R weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.run import read_run
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.slide_evaluation import SlideEvaluation, evaluate_slides
from asmil.tasks.multilabel import THRESHOLD
from asmil.tasks.weighted import binary_auc, binary_average_precision, mean_defined

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]


def evaluate_multilabel(run: Path | str, role: Role = "test", resamples: int = 2000, seed: int = 0) -> SlideEvaluation:
    """Evaluate the probabilities that a multi-label run gave for one part of its cohort.

    Metrics: `macro_auc`, `macro_f1` (called from 0.5 on) and `mean_ap` (average precision), and of every label `auc`,
    `f1` and `ap`. Means leave out labels whose AUC or average precision is undefined; an F1 without a denominator is 0.
    """
    opened = read_run(run, "multilabel")
    labels = opened.classes
    for label in labels:
        unknown = ~opened.predictions[f"target_{label}"].isin([0, 1])
        if unknown.any():
            slide = opened.predictions.loc[unknown, "slide"].iloc[0]
            raise AsmilError(f"{opened.path}: target_{label} of slide {slide} is neither 0 nor 1; train again")

    def measure(rows: pd.DataFrame, weights: Floats) -> dict[str, Floats]:
        present = rows[[f"target_{label}" for label in labels]].to_numpy() > 0
        scores = rows[[f"prob_{label}" for label in labels]].to_numpy(dtype=np.float64)
        return weighted_multilabel(present, scores, weights)

    return evaluate_slides(opened, role, resamples, seed, measure, labels)


def weighted_multilabel(present: Booleans, scores: Floats, weights: Floats) -> dict[str, Floats]:
    """R x K values of `auc`, `f1`, `ap`, and R means over the labels; present, scores: n x K; weights: R x n."""
    columns = range(present.shape[1])
    auc = np.stack([binary_auc(present[:, k], scores[:, k], weights) for k in columns], axis=1)
    ap = np.stack([binary_average_precision(present[:, k], scores[:, k], weights) for k in columns], axis=1)
    called = scores >= THRESHOLD
    both = weights @ (called & present).astype(np.float64)
    either = weights @ called.astype(np.float64) + weights @ present.astype(np.float64)
    f1 = np.where(either > 0, 2 * both / np.where(either > 0, either, 1.0), 0.0)
    return {
        "macro_auc": mean_defined(auc),
        "macro_f1": f1.mean(axis=1),
        "mean_ap": mean_defined(ap),
        "auc": auc,
        "f1": f1,
        "ap": ap,
    }
