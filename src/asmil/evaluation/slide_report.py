"""What the reports of regression and multi-label runs say beside their metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asmil.evaluation.report import SLIDE_READING, parts_table
from asmil.evaluation.slide_evaluation import SlideEvaluation
from asmil.reporting import Block, Figure, Heading
from asmil.reporting.drawing import COLORS, GUIDE, new_figure, svg_text


def value_blocks(evaluation: SlideEvaluation) -> list[Block]:
    """Predicted against true values of one run."""
    caption = "One dot per slide, the mean over trainings. On the dashed line prediction and truth are equal."
    return [Heading("Predictions"), Figure(scatter_figure(evaluation), "Predicted and true values", caption)]


def value_reading(evaluations: Sequence[SlideEvaluation]) -> list[str]:
    """How to read the numbers."""
    return [
        *SLIDE_READING,
        "MAE (mean absolute error) and RMSE (root mean squared error) are in the unit of the target. R² compares with "
        "the mean of the evaluated targets: 0 is as good as that mean, and it can be below 0. Pearson and Spearman "
        "correlations do not depend on a shift or a scale.",
    ]


def label_blocks(evaluation: SlideEvaluation) -> list[Block]:
    """The labels of one run."""
    table = parts_table(
        evaluation,
        "slides with it",
        f"{'Mean over seeds' if evaluation.n_seeds > 1 else 'Value'}, with its 95 % interval by patient.",
    )
    return [Heading("Labels"), table]


def label_reading(evaluations: Sequence[SlideEvaluation]) -> list[str]:
    """How to read the numbers."""
    return [
        *SLIDE_READING,
        "Each label is evaluated separately: its AUC, its average precision (whose chance level is the share of slides "
        "with the label), and its F1 at a probability of 0.5. Means give every label the same weight and leave out "
        "labels whose AUC or average precision is undefined; an F1 without a denominator is 0.",
    ]


def scatter_figure(evaluation: SlideEvaluation) -> str:
    """Predicted against true values, one dot per slide (its mean over trainings), and the line of equality."""
    means = evaluation.rows.groupby("slide", sort=True)[["target", "value"]].mean()
    ends = np.array([means.to_numpy().min(), means.to_numpy().max()])
    with new_figure(4.6, 4.4) as figure:
        axes = figure.add_subplot()
        axes.plot(ends, ends, color=GUIDE, linewidth=1, linestyle="--")
        axes.plot(means["target"], means["value"], "o", color=COLORS[0], markersize=6, alpha=0.7, markeredgewidth=0)
        axes.set(title="Predicted and true values", xlabel="true value", ylabel="predicted value")
        return svg_text(figure)
