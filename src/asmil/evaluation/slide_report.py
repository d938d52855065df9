"""Sections of the report of runs that predict slides: values, labels, and the metrics of each class or label."""

from __future__ import annotations

import numpy as np

from asmil.evaluation.slide_evaluation import SlideEvaluation
from asmil.reporting import Block, Figure, Heading, Table, estimate_cell
from asmil.reporting.drawing import COLORS, GUIDE, ONE_COLUMN, new_figure, svg_text

SLIDE_READING = (
    "Values are means over seeds. For each seed the metric is computed on the joined slides of all folds.",
    "Intervals are 95 % percentile intervals of a bootstrap over patients, each drawn with all its slides. They show "
    "the uncertainty due to the choice of patients; the standard deviation (sd) over seeds shows the variance of "
    "training.",
    "If all resamples agree, as for an AUC of 1, the interval depends on the number of patients only: exact for "
    "shares, Newcombe's for an AUC. Other metrics read `too few to say`.",
)
"""How to read the numbers of runs that predict slides; then what values and labels add to it."""
VALUE_READING = (
    *SLIDE_READING,
    "MAE (mean absolute error) and RMSE (root mean squared error) are in the unit of the target. R² is 0 for a model "
    "that always predicts the mean of the evaluated targets, and it can be negative. Pearson and Spearman correlations "
    "do not change if predictions are shifted or scaled.",
)
LABEL_READING = (
    *SLIDE_READING,
    "Each label is evaluated separately: its AUC, its average precision (whose chance level is the share of slides "
    "with the label), and its F1 at a probability of 0.5. Means give every label the same weight and skip labels whose "
    "AUC or average precision is undefined; an F1 with a zero denominator is 0.",
)


def parts_table(evaluation: SlideEvaluation, column: str, caption: str) -> Table:
    """One row per class or label, with its metrics and its number of slides."""
    metrics = evaluation.run.format.part_metrics
    return Table(
        [evaluation.part_name, *(metric.title for metric in metrics), column],
        [
            [row.name, *(estimate_cell(row.metrics[metric.name]) for metric in metrics), str(row.support)]
            for row in evaluation.classes
        ],
        narrow=frozenset(metric.title for metric in metrics if not metric.in_terminal),
        title=f"each {evaluation.part_name}{', ' * bool(evaluation.mean_of)}{evaluation.mean_of}",
        caption=caption,
        in_terminal=True,
    )


def value_blocks(evaluation: SlideEvaluation) -> list[Block]:
    """Predicted against true values of one run."""
    caption = "One dot per slide, the mean over trainings. On the dashed line prediction and truth are equal."
    return [Heading("Predictions"), Figure(scatter_figure(evaluation), "Predicted and true values", caption)]


def label_blocks(evaluation: SlideEvaluation) -> list[Block]:
    """The labels of one run."""
    table = parts_table(
        evaluation,
        f"positive {evaluation.unit_name}s",
        f"{'Mean over seeds' if evaluation.n_seeds > 1 else 'Value'} with its 95 % patient-level bootstrap interval.",
    )
    return [Heading("Labels"), table]


def scatter_figure(evaluation: SlideEvaluation) -> str:
    """Predicted against true values, one dot per slide (mean over trainings), with the identity line."""
    means = evaluation.rows.groupby("slide", sort=True)[["target", "value"]].mean()
    ends = np.array([means.to_numpy().min(), means.to_numpy().max()])
    with new_figure(ONE_COLUMN, 4.4) as figure:
        axes = figure.add_subplot()
        axes.plot(ends, ends, color=GUIDE, linewidth=1, linestyle="--")
        axes.plot(means["target"], means["value"], "o", color=COLORS[0], markersize=6, alpha=0.7, markeredgewidth=0)
        axes.set(title="Predicted and true values", xlabel="true value", ylabel="predicted value")
        return svg_text(figure)
