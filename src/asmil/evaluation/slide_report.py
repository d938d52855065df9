"""What the reports of regression and multi-label runs say beside their metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing

from asmil.evaluation.figures import COLORS, STYLE, svg_text
from asmil.evaluation.report import metric_table
from asmil.evaluation.slide_evaluation import SlideEvaluation
from asmil.reporting import Block, Figure, Heading

GENERAL = (
    "Values are means over seeds of the metric on all slides of the part, with the folds of a seed joined.",
    "Intervals are 95 % percentile intervals of a bootstrap over patients, each drawn with all its slides. They show "
    "how much the choice of patients matters; the standard deviation (sd) over seeds shows the noise of training.",
)


def regression_blocks(evaluation: SlideEvaluation) -> list[Block]:
    """Predicted against true values of one run."""
    return [Figure(scatter_figure(evaluation), "Predicted and true values")]


def regression_reading(evaluations: Sequence[SlideEvaluation]) -> list[str]:
    """How to read the numbers."""
    return [
        *GENERAL,
        "MAE (mean absolute error) and RMSE (root mean squared error) are in the unit of the target. R² compares with "
        "the mean of the evaluated targets: 0 is as good as that mean, and it can be below 0. Pearson and Spearman "
        "correlations do not see a shift or a scale.",
    ]


def label_blocks(evaluation: SlideEvaluation) -> list[Block]:
    """The labels of one run."""
    table = metric_table(
        ("label", "slides with it"),
        [(row.name, str(row.support), row.metrics) for row in evaluation.classes],
        evaluation.run.format.part_metrics,
        title="each label",
        caption="Mean over seeds, 95 % interval by patient.",
        in_terminal=True,
    )
    return [Heading("Labels"), table]


def label_reading(evaluations: Sequence[SlideEvaluation]) -> list[str]:
    """How to read the numbers."""
    return [
        *GENERAL,
        "Each label is evaluated separately: its AUC, its average precision (whose chance level is the share of slides "
        "with the label), and its F1 when called from a probability of 0.5 on. Means give every label the same weight "
        "and leave out labels whose AUC or average precision is undefined; an F1 without a denominator is 0.",
    ]


def scatter_figure(evaluation: SlideEvaluation) -> str:
    """Predicted against true values, one dot per slide (its mean over trainings), and the line of equality."""
    means = evaluation.rows.groupby("slide", sort=True)[["target", "value"]].mean()
    ends = np.array([means.to_numpy().min(), means.to_numpy().max()])
    with rc_context(STYLE):
        figure = Drawing(figsize=(4.6, 4.4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(ends, ends, color="#b9c0c8", linewidth=1, linestyle="--")
        axes.plot(means["target"], means["value"], "o", color=COLORS[0], markersize=4, alpha=0.55, markeredgewidth=0)
        axes.set(title="Predicted and true values", xlabel="true value", ylabel="predicted value")
        return svg_text(figure)
