"""ROC and precision-recall curves: for the classes of one run, and for several runs with bootstrap bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asmil.reporting.drawing import COLORS, GUIDE, ONE_COLUMN, new_figure, plain_text, svg_text
from asmil.reporting.estimate import Estimate
from asmil.tables.arrays import AnyFloats, Booleans, Floats
from asmil.tasks.metrics import precision_recall_points, roc_points
from asmil.tasks.weighted import binary_auc, binary_average_precision

RATE_GRID = np.linspace(0, 1, 201)
BAND = (2.5, 97.5)
BAND_DRAWS = 200
"""Resamples of patients behind a band."""
Replicate = tuple[Booleans, AnyFloats]
"""Which slides are positive, and their scores."""


@dataclass(frozen=True)
class CurveKind:
    """A kind of curve: its axes, the metric that is its area, its points, and its values on a grid of x."""

    title: str
    x: str
    y: str
    metric: str
    area: str
    area_of: Callable[[Booleans, Floats, Floats], Floats]
    legend: Literal["lower left", "lower right"]
    points: Callable[[Booleans, AnyFloats, AnyFloats | None], tuple[AnyFloats, AnyFloats]]
    on_grid: Callable[[AnyFloats, AnyFloats], AnyFloats]
    needs_negatives: bool


ROC = CurveKind(
    "ROC curves",
    "false positive rate",
    "true positive rate",
    "auc",
    "AUC",
    binary_auc,
    "lower right",
    roc_points,
    lambda false, true: np.interp(RATE_GRID, false, true),
    needs_negatives=True,
)
PRECISION_RECALL = CurveKind(
    "Precision-recall curves",
    "recall",
    "precision",
    "ap",
    "AP",
    binary_average_precision,
    "lower left",
    precision_recall_points,
    # the precision at a recall is that of the first point that reaches this recall
    lambda recall, precision: precision[np.searchsorted(recall, RATE_GRID - 1e-12).clip(max=len(recall) - 1)],
    needs_negatives=False,
)
KINDS = (ROC, PRECISION_RECALL)


def class_curves(
    kind: CurveKind, classes: Mapping[str, tuple[Estimate, Sequence[Replicate]]], weights: Sequence[AnyFloats]
) -> str | None:
    """Curves of classes with their areas: replicates as thin lines, their mean as a thick one with its 95 % band.

    weights: of each replicate, R x n, how often slides are resampled
    The chance level is dashed. None if no class has a curve.
    """
    with new_figure(ONE_COLUMN, 4.2) as figure:
        axes = figure.add_subplot()
        for (name, (area, replicates)), color in zip(classes.items(), _colors(len(classes)), strict=True):
            used = [
                (weight, *replicate)
                for weight, replicate in zip(weights, replicates, strict=True)
                if _has_curve(kind, replicate[0])
            ]
            curves = [kind.points(positive, scores, None) for _, positive, scores in used]
            if not curves:
                continue
            _draw_band(axes, kind, used, color)
            for x, y in curves if len(replicates) > 1 else ():
                axes.plot(x, y, drawstyle=_steps(kind), color=color, linewidth=0.7, alpha=0.35)
            mean = np.mean([kind.on_grid(x, y) for x, y in curves], axis=0)
            mean_area = "mean " * (len(replicates) > 1) + kind.area
            ends = f" ({area.interval.low:.2f}–{area.interval.high:.2f})" if area.interval.is_defined else ""
            _draw_mean(axes, kind, mean, color, f"{plain_text(name)}  {mean_area} {area.value:.3f}{ends}")
            if not kind.needs_negatives:
                share = float(np.mean([positive.mean() for _, positive, _ in used]))
                axes.axhline(share, color=color, linewidth=0.9, linestyle="--", alpha=0.6)
        return _finished(figure, axes, kind) if axes.get_legend_handles_labels()[0] else None


def run_curves(
    kind: CurveKind,
    present: Booleans,
    known: Booleans,
    runs: Mapping[str, Floats],
    weights: AnyFloats,
    labels: Sequence[int],
) -> str | None:
    """One curve per run with a 95 % bootstrap band over patients; several classes or labels are averaged.

    present: n x K, which slides have which class; known: n x K, of which slides this is known
    runs: S x n x K predictions
    weights: R x n, how often slides are resampled; labels: indices of the classes to draw
    """
    drawable = [k for k in labels if _has_curve(kind, present[known[:, k], k])]
    kept = {k: np.flatnonzero(known[:, k]) for k in drawable}
    if not drawable:
        return None
    with new_figure(ONE_COLUMN, 4.2) as figure:
        axes = figure.add_subplot()
        for (name, predictions), color in zip(runs.items(), _colors(len(runs)), strict=True):
            parts = [
                (weights[:, kept[k]], present[kept[k], k], of_seed[kept[k], k])
                for k in drawable
                for of_seed in predictions
            ]
            mean = np.mean([kind.on_grid(*kind.points(has, scores, None)) for _, has, scores in parts], axis=0)
            _draw_band(axes, kind, parts, color)
            area = float(np.mean([kind.area_of(has, scores, np.ones((1, len(has))))[0] for _, has, scores in parts]))
            label = f"{plain_text(name)}  {'mean ' * (len(parts) > 1)}{kind.area} {area:.3f}"
            _draw_mean(axes, kind, mean, color, label)
        return _finished(figure, axes, kind)


def _has_curve(kind: CurveKind, positive: Booleans) -> bool:
    return bool(positive.any() and not (kind.needs_negatives and positive.all()))


def _colors(count: int) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(count)]


def _draw_band(axes: Axes, kind: CurveKind, parts: Sequence[tuple[AnyFloats, Booleans, AnyFloats]], color: str) -> None:
    """The 95 % band of the mean curve; parts: R x n weights of slides, which are positive, and their scores."""
    drawn = [
        np.mean([kind.on_grid(*kind.points(has, scores, weight[row])) for weight, has, scores in parts], axis=0)
        for row in range(len(parts[0][0]))
        if all(_has_curve(kind, has[weight[row] > 0]) for weight, has, _ in parts)
    ]
    if drawn:
        low, high = np.percentile(drawn, BAND, axis=0)
        axes.fill_between(RATE_GRID, low, high, color=color, alpha=0.13, linewidth=0)


def _steps(kind: CurveKind) -> str:
    return "default" if kind.needs_negatives else "steps-pre"


def _draw_mean(axes: Axes, kind: CurveKind, mean: AnyFloats, color: str, label: str) -> None:
    start = [0.0] if kind.needs_negatives else []
    axes.plot(np.r_[start, RATE_GRID], np.r_[start, mean], color=color, linewidth=1.8, label=label)


def _finished(figure: Figure, axes: Axes, kind: CurveKind) -> str:
    if kind.needs_negatives:
        axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle="--")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", title=kind.title, xlabel=kind.x, ylabel=kind.y)
    axes.legend(loc=kind.legend)
    return svg_text(figure)
