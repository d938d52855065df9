"""Sections of the report that only classification runs have: classes, confusion, curves, calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from asmil.evaluation.classification import CALIBRATION_TITLES, OPERATING_METRICS, Evaluation, range_of, rule_in_words
from asmil.evaluation.curves import BAND_DRAWS, KINDS, CurveKind, class_curves
from asmil.evaluation.rows import by_slide, replicates_of
from asmil.evaluation.slide_report import SLIDE_READING, parts_table
from asmil.reporting import Block, Cell, Figure, Heading, Row, SideBySide, Table, estimate_cell
from asmil.reporting.drawing import COLORS, GUIDE, ONE_COLUMN, new_figure, svg_text
from asmil.reporting.formats import format_number
from asmil.runs.predictions import uncertainty_column
from asmil.tasks.calibration import Reliability
from asmil.tasks.intervals import draw_patients, number_patients, proportion_interval

UNCERTAINTIES = {"mutual_information": "mutual information", "entropy": "entropy"}
"""Uncertainties that reports show, with their titles."""
RELIABILITY = "Vertical lines: 95 % binomial intervals of the share of correct predictions in a bin."


def class_blocks(evaluation: Evaluation) -> list[Block]:
    """Classes, confusion, curves, calibration and the operating point of one run."""
    return [
        Heading("Classes"),
        parts_table(
            evaluation,
            f"{evaluation.unit_name}s",
            f"Each class against the rest{_over_seeds(evaluation)}, with 95 % patient-level bootstrap intervals.",
        ),
        Heading("Confusion matrix"),
        _confusion(evaluation),
        Heading("Curves"),
        SideBySide([Figure(_curves(evaluation, kind), kind.title) for kind in KINDS]),
        _lines_in_words(evaluation),
        Heading("Calibration"),
        SideBySide([_calibration(evaluation), Figure(reliability_figure(evaluation), "Reliability", RELIABILITY)]),
        *_operating(evaluation),
        *_uncertainty(evaluation),
    ]


def _lines_in_words(evaluation: Evaluation) -> str:
    many = len(evaluation.replicates()) > 1
    single = "seeds, with their folds joined" if evaluation.folds_joined and evaluation.n_folds > 1 else "trainings"
    lines = f"Thin lines are single {single}; thick lines are their mean. " * many
    return f"{lines}Bands: 95 % of {BAND_DRAWS} bootstrap resamples of patients. Dashed: chance."


def class_reading(evaluations: Sequence[Evaluation]) -> list[str]:
    """How to read the numbers."""
    chosen = "The predicted class is the most probable one."
    if any(evaluation.at_threshold for evaluation in evaluations):
        chosen = "Classes are predicted at the threshold of each training; AUC and AP do not depend on it."
    return [
        *SLIDE_READING,
        f"{chosen} The first sentence and the confusion matrix count every slide once, by the mean prediction of its "
        "trainings; metrics are computed for each seed and averaged.",
        "Macro averages give every class the same weight; macro-AUC is the mean of the one-vs-rest AUCs.",
    ]


def _uncertainty(evaluation: Evaluation) -> list[Block]:
    """How uncertain correct and wrong predictions are, for methods that estimate it."""
    columns = {title: uncertainty_column(name) for name, title in UNCERTAINTIES.items()}
    if not set(columns.values()) <= set(evaluation.rows):
        return []
    _, truth, probabilities = by_slide(evaluation.run.format, evaluation.rows)
    means = evaluation.rows.groupby("slide", sort=True)[list(columns.values())].mean().to_numpy()
    correct = probabilities.argmax(axis=1) == np.asarray(truth)
    rows: list[Row] = [
        [name, str(int(chosen.sum())), *(format_number(value, 3) for value in means[chosen].mean(axis=0))]
        for name, chosen in (("correct", correct), ("wrong", ~correct))
        if chosen.any()
    ]
    caption = (
        "Mean uncertainty of slides by whether their most probable class is the true one, in nats. The mutual "
        "information is the disagreement between the windows of the method; the entropy is the total uncertainty."
    )
    return [Heading("Uncertainty"), Table(["prediction", f"{evaluation.unit_name}s", *columns], rows, caption=caption)]


def _confusion(evaluation: Evaluation) -> Table:
    rows: list[Row] = [
        [name, *(Cell(str(count), shade=int(count) / max(1, int(counts.sum()))) for count in counts)]
        for name, counts in zip(evaluation.run.classes, evaluation.confusion, strict=True)
    ]
    unit = evaluation.unit_name
    how = f", with {' and '.join(evaluation.counted_with)}" if evaluation.counted_with else ""
    caption = (
        f"{evaluation.confusion.sum()} {unit}s by true and predicted class, each counted once{how}. Percentages are "
        f"shares of the {unit}s of the true class."
    )
    return Table(["true class", *(f"predicted {name}" for name in evaluation.run.classes)], rows, caption=caption)


def _curves(evaluation: Evaluation, kind: CurveKind) -> str | None:
    """One curve per class; of two classes only the second is drawn, since they mirror each other."""
    labels = [1] if len(evaluation.classes) == 2 else range(len(evaluation.classes))
    replicates = evaluation.replicates()
    drawn = {
        evaluation.classes[k].name: (
            evaluation.classes[k].metrics[kind.metric],
            [(target == k, probabilities[:, k]) for target, probabilities in replicates],
        )
        for k in labels
    }
    rows = evaluation.rows.assign(patient_number=number_patients(evaluation.rows["patient"].tolist()))
    draws = draw_patients(evaluation.n_patients, BAND_DRAWS, seed=0).astype(np.float64)
    weights = [draws[:, part["patient_number"].to_numpy()] for part in replicates_of(rows)]
    return class_curves(kind, drawn, weights)


def _calibration(evaluation: Evaluation) -> Table:
    calibration = evaluation.calibration
    columns = [("as predicted", calibration.as_predicted)]
    note = f"The temperature stays 1: {calibration.reason}."
    if calibration.scaled is not None:
        columns.append(("temperature-scaled", calibration.scaled))
        temperatures = range_of(calibration.temperatures.values(), 2)
        note = (
            f"Temperatures ({temperatures}) were fitted on the validation set of each training; scaling does not "
            "change the predicted class."
        )
        note += f" Scaling made worse: {', '.join(calibration.worsened)}." if calibration.worsened else ""
    rows = [
        [title, *(format_number(getattr(numbers, name)) for _, numbers in columns)]
        for name, title in CALIBRATION_TITLES.items()
    ]
    smaller = f"Lower is better{_over_seeds(evaluation)}."
    return Table(["", *(title for title, _ in columns)], rows, caption=f"{note} {smaller}")


def _operating(evaluation: Evaluation) -> list[Block]:
    operating = evaluation.operating
    if operating is None:
        return []
    point = operating.point
    ends = range_of(point.thresholds.values())
    several = evaluation.n_trainings > 1
    threshold = f"the threshold of its training ({ends})" if several else ends
    caption = (
        f"A {evaluation.unit_name} is predicted as {point.positive} if its probability is at least {threshold}. "
        f"The threshold gives {rule_in_words(point.rule)} on the validation set{' of each training' * several}; "
        f"the test set was not used.{' Values: ' + evaluation.mean_of + '.' if evaluation.mean_of else ''}"
    )
    names = [name for name, _, _ in OPERATING_METRICS]
    row: Row = [point.positive, *(estimate_cell(operating.metrics[name]) for name in names)]
    table = Table(["class", *(name.replace("_f1", "-F1") for name in names)], [row], caption=caption)
    return [Heading("At the operating threshold"), table]


def _over_seeds(evaluation: Evaluation) -> str:
    return ", mean over seeds" * (evaluation.n_seeds > 1)


def reliability_figure(evaluation: Evaluation) -> str:
    """Accuracy against confidence, before and after temperature scaling, above the number of slides per bin."""
    calibration = evaluation.calibration
    with new_figure(ONE_COLUMN, 4.6) as figure:
        axes, below = figure.subplots(2, 1, height_ratios=[4, 1], sharex=True)
        axes.plot([0, 1], [0, 1], color=GUIDE, linewidth=1, linestyle="--")
        times = len(evaluation.replicates())
        _draw_reliability(axes, calibration.as_predicted.bins, times, COLORS[0], "as predicted")
        if calibration.scaled is not None:
            _draw_reliability(axes, calibration.scaled.bins, times, COLORS[1], "temperature-scaled")
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02), title="Reliability", ylabel="share predicted correctly")
        axes.legend(loc="upper left")
        count = calibration.as_predicted.bins.count / times
        edges = np.linspace(0, 1, len(count) + 1)
        below.bar(edges[:-1], count, width=np.diff(edges), align="edge", color=COLORS[0], alpha=0.6, linewidth=0)
        below.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        below.set(xlabel="probability of the predicted class", ylabel=f"{evaluation.unit_name}s")
        return svg_text(figure)


def _draw_reliability(axes: Axes, bins: Reliability, times: int, color: str, name: str) -> None:
    """Dots with 95 % intervals; times: how often the bins count each slide, once per replicate."""
    filled = bins.count > 0
    for number in np.flatnonzero(filled):
        slides = max(1, round(bins.count[number] / times))
        ends = proportion_interval(round(bins.accuracy[number] * slides), slides)
        axes.plot([bins.confidence[number]] * 2, list(ends), color=color, linewidth=0.9)
    sizes = 12 + 60 * bins.count[filled] / bins.count.max()
    axes.plot(bins.confidence[filled], bins.accuracy[filled], color=color, linewidth=1, label=name)
    axes.scatter(bins.confidence[filled], bins.accuracy[filled], s=sizes, color=color, alpha=0.7, linewidths=0)
