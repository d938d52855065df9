"""Regression runs: errors and correlations with intervals by patient. n slides, R sets of weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from asmil.errors import AsmilError
from asmil.evaluation.figures import COLORS, STYLE, svg_text
from asmil.evaluation.run import read_run
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.slide_evaluation import SlideEvaluation, evaluate_slides

Floats = npt.NDArray[np.float64]


def evaluate_regression(run: Path | str, role: Role = "test", resamples: int = 2000, seed: int = 0) -> SlideEvaluation:
    """Evaluate the values that a regression run predicted for one part of its cohort.

    Metrics: `mae`, `rmse`, `r2`, `pearson`, `spearman`; undefined ones (all targets equal) are nan.
    """
    opened = read_run(run, "regression")
    numbers = opened.predictions[["target", "value"]].to_numpy(dtype=np.float64)
    if not np.isfinite(numbers).all():
        slide = opened.predictions.loc[~np.isfinite(numbers).all(axis=1), "slide"].iloc[0]
        raise AsmilError(f"{opened.path}: the target of slide {slide} is not finite; correct the manifest")
    return evaluate_slides(opened, role, resamples, seed, _measure)


def weighted_regression(target: Floats, value: Floats, weights: Floats) -> dict[str, Floats]:
    """R values of every metric: target, value: n; weights: R x n.

    r2 = 1 - sum (y - v)^2 / sum (y - mean y)^2; spearman is pearson of the midranks.
    """
    total = weights.sum(axis=1)
    safe = np.where(total > 0, total, np.nan)
    error = target - value
    squared = weights @ error**2
    centered = target - target.mean()
    spread = weights @ centered**2 - (weights @ centered) ** 2 / safe
    constant = spread <= 1e-12 * np.maximum(weights @ centered**2, np.finfo(float).tiny)
    ranks = weighted_midranks(target, weights), weighted_midranks(value, weights)
    return {
        "mae": weights @ np.abs(error) / safe,
        "rmse": np.sqrt(squared / safe),
        "r2": np.where(constant, np.nan, 1 - squared / np.where(constant, 1.0, spread)),
        "pearson": _correlation(target - target.mean(), value - value.mean(), weights),
        "spearman": _correlation(*ranks, weights),
    }


def weighted_midranks(values: Floats, weights: Floats) -> Floats:
    """R x n midranks of n values, each present as often as its weight says."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    group_weight = np.add.reduceat(weights[:, order], starts, axis=1)
    midrank = np.cumsum(group_weight, axis=1) - group_weight / 2 + 0.5
    ranks = np.empty_like(weights)
    ranks[:, order] = np.repeat(midrank, np.diff(np.r_[starts, len(values)]), axis=1)
    return ranks


def scatter_figure(evaluation: SlideEvaluation) -> str:
    """Predicted against true values, a dot a slide (its mean over trainings), and the line of equality."""
    means = evaluation.rows.groupby("slide", sort=True)[["target", "value"]].mean()
    ends = np.array([means.to_numpy().min(), means.to_numpy().max()])
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6, 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(ends, ends, color="#b9c0c8", linewidth=1, linestyle="--")
        axes.plot(means["target"], means["value"], "o", color=COLORS[0], markersize=4, alpha=0.55, markeredgewidth=0)
        axes.set(title="Predicted and true values", xlabel="true value", ylabel="predicted value")
        return svg_text(figure)


def _measure(rows: pd.DataFrame, weights: Floats) -> dict[str, Floats]:
    return weighted_regression(rows["target"].to_numpy(np.float64), rows["value"].to_numpy(np.float64), weights)


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """R weighted correlations of n, or R x n, values; nan where either is constant."""
    total = weights.sum(axis=1, keepdims=True)
    safe = np.where(total > 0, total, 1.0)
    x_apart = x - (weights * x).sum(axis=1, keepdims=True) / safe
    y_apart = y - (weights * y).sum(axis=1, keepdims=True) / safe
    x_spread, y_spread = (weights * x_apart**2).sum(axis=1), (weights * y_apart**2).sum(axis=1)
    product, smallest = np.sqrt(x_spread * y_spread), 1e-12 * total[:, 0]
    defined = (x_spread > smallest * np.abs(x).max() ** 2) & (y_spread > smallest * np.abs(y).max() ** 2)
    return np.where(defined, (weights * x_apart * y_apart).sum(axis=1) / np.where(defined, product, 1.0), np.nan)
