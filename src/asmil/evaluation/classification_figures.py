"""Figures of a classification report: ROC and precision-recall curves, reliability."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.evaluation.calibration import Reliability
from asmil.evaluation.classification import Evaluation
from asmil.evaluation.figures import COLORS, STYLE, plain_text, svg_text
from asmil.tasks.checked_arrays import Floats

RATE_GRID = np.linspace(0, 1, 201)


def roc_points(positive: npt.NDArray[np.bool_], score: Floats) -> tuple[Floats, Floats]:
    """False and true positive rates from (0, 0) to (1, 1), a point for every distinct score."""
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]
    true = np.cumsum(positive[order])[last_of_tie]
    false = np.cumsum(~positive[order])[last_of_tie]
    return np.r_[0.0, false / false[-1]], np.r_[0.0, true / true[-1]]


def roc_figure(evaluation: Evaluation) -> str | None:
    """ROC curves, one color per class: thin lines are seeds, the thick one is their mean (true positive rate).

    Two classes mirror each other, so only the second is drawn. None when no class has a curve.
    """
    names = evaluation.run.classes
    labels = [1] if len(names) == 2 else range(len(names))
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color="#b9c0c8", linewidth=1, linestyle="--")
        drawn = [_draw_roc(axes, evaluation, label, COLORS[label % len(COLORS)]) for label in labels]
        if not any(drawn):
            return None
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", title="ROC curves")
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(loc="lower right")
        return svg_text(figure)


def precision_recall_points(positive: npt.NDArray[np.bool_], score: Floats) -> tuple[Floats, Floats]:
    """Recall and precision from the highest score down, a point for every distinct score; recall rises to 1."""
    order = np.argsort(-score, kind="stable")
    last_of_tie = np.r_[np.flatnonzero(np.diff(score[order])), len(score) - 1]
    true = np.cumsum(positive[order])[last_of_tie]
    return true / true[-1], true / (last_of_tie + 1)


def precision_recall_figure(evaluation: Evaluation) -> str | None:
    """Precision-recall curves, one color per class: thin lines are seeds, the thick one their mean; the share of the
    class, which guessing has as its precision, is dashed. Of two classes only the second is drawn.
    """
    names = evaluation.run.classes
    labels = [1] if len(names) == 2 else range(len(names))
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 4.2), layout="constrained")
        axes = figure.add_subplot()
        drawn = [_draw_precision_recall(axes, evaluation, label, COLORS[label % len(COLORS)]) for label in labels]
        if not any(drawn):
            return None
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", title="Precision-recall curves")
        axes.set(xlabel="recall", ylabel="precision")
        axes.legend(loc="lower left")
        return svg_text(figure)


def reliability_figure(evaluation: Evaluation) -> str:
    """Accuracy against confidence, as predicted and at the fitted temperature, above the number of slides per bin."""
    calibration = evaluation.calibration
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 4.6), layout="constrained")
        axes, below = figure.subplots(2, 1, height_ratios=[4, 1], sharex=True)
        axes.plot([0, 1], [0, 1], color="#b9c0c8", linewidth=1, linestyle="--")
        _draw_reliability(axes, calibration.as_predicted.bins, COLORS[0], "as predicted", calibration.as_predicted.ece)
        if calibration.scaled is not None:
            _draw_reliability(axes, calibration.scaled.bins, COLORS[1], "temperature-scaled", calibration.scaled.ece)
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), title="Reliability", ylabel="share called right")
        axes.legend(loc="upper left")
        count = calibration.as_predicted.bins.count
        edges = np.linspace(0, 1, len(count) + 1)
        below.bar(edges[:-1], count, width=np.diff(edges), align="edge", color=COLORS[0], alpha=0.6, linewidth=0)
        below.set(xlabel="probability of the class that was called", ylabel="slides")
        return svg_text(figure)


def _draw_precision_recall(axes: Axes, evaluation: Evaluation, label: int, color: str) -> bool:
    curves, shares, replicates = [], [], evaluation.replicates()
    for target, probabilities in replicates:
        positive = target == label
        if not positive.any():
            continue
        recall, precision = precision_recall_points(positive, probabilities[:, label])
        # the precision at a recall is that of the first point which reaches it
        curves.append(precision[np.searchsorted(recall, RATE_GRID - 1e-12, side="left").clip(max=len(recall) - 1)])
        shares.append(float(positive.mean()))
        if len(replicates) > 1:
            axes.step(recall, precision, where="pre", color=color, linewidth=0.7, alpha=0.35)
    if not curves:
        return False
    row = evaluation.classes[label]
    text = f"{plain_text(row.name)}  AP {row.metrics['ap'].value:.3f}"
    axes.plot(RATE_GRID, np.mean(curves, axis=0), color=color, linewidth=1.8, label=text)
    axes.axhline(float(np.mean(shares)), color=color, linewidth=0.9, linestyle="--", alpha=0.6)
    return True


def _draw_reliability(axes: Axes, bins: Reliability, color: str, name: str, ece: float) -> None:
    filled = bins.count > 0
    sizes = 12 + 60 * bins.count[filled] / bins.count.max()
    axes.plot(bins.confidence[filled], bins.accuracy[filled], color=color, linewidth=1, label=f"{name}  ECE {ece:.3f}")
    axes.scatter(bins.confidence[filled], bins.accuracy[filled], s=sizes, color=color, alpha=0.7, linewidths=0)


def _draw_roc(axes: Axes, evaluation: Evaluation, label: int, color: str) -> bool:
    curves, replicates = [], evaluation.replicates()
    for target, probabilities in replicates:
        positive = target == label
        if positive.any() and not positive.all():
            false, true = roc_points(positive, probabilities[:, label])
            curves.append(np.interp(RATE_GRID, false, true))
            if len(replicates) > 1:
                axes.plot(false, true, color=color, linewidth=0.7, alpha=0.35)
    if not curves:
        return False
    mean = np.mean(curves, axis=0)
    row = evaluation.classes[label]
    text = f"{plain_text(row.name)}  AUC {row.metrics['auc'].value:.3f}"
    axes.plot(np.r_[0.0, RATE_GRID], np.r_[0.0, mean], color=color, linewidth=1.8, label=text)
    return True
