"""What the report of a classification run says beside its metrics."""

from __future__ import annotations

from collections.abc import Sequence

from asmil.evaluation.classification import Evaluation
from asmil.evaluation.classification_figures import precision_recall_figure, reliability_figure, roc_figure
from asmil.evaluation.report import metric_table
from asmil.reporting import Block, Cell, Figure, Heading, Row, SideBySide, Table, estimate_cell
from asmil.reporting.formats import format_count, format_number

OPERATING_TITLES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "precision": "precision",
    "macro_f1": "macro-F1",
    "accuracy": "accuracy",
}


def classification_blocks(evaluation: Evaluation) -> list[Block]:
    """Classes, confusion, curves, calibration and the operating point of one run."""
    return [
        Heading("Classes"),
        metric_table(
            ("class", "slides"),
            [(row.name, str(row.support), row.metrics) for row in evaluation.classes],
            evaluation.run.format.part_metrics,
            title="each class against the rest",
            caption="Each class against the rest: mean over seeds, 95 % interval by patient.",
            in_terminal=True,
        ),
        Heading("Confusion matrix"),
        _confusion(evaluation),
        SideBySide(
            [
                Figure(roc_figure(evaluation), "ROC curves"),
                Figure(precision_recall_figure(evaluation), "Precision-recall curves"),
            ]
        ),
        Heading("Calibration"),
        SideBySide([_calibration(evaluation), Figure(reliability_figure(evaluation), "Reliability")]),
        *_operating(evaluation),
    ]


def classification_reading(evaluations: Sequence[Evaluation]) -> list[str]:
    """How to read the numbers."""
    sentences = [
        "Values are means over seeds of the metric on all slides of the part, with the folds of a seed joined. "
        "The predicted class is the most probable one. Macro averages give every class the same weight; macro-AUC "
        "is the mean of the one-vs-rest AUCs.",
        "Intervals are 95 % percentile intervals of a bootstrap over patients, each drawn with all its slides. They "
        "show how much the choice of patients matters; the standard deviation (sd) over seeds shows the noise of "
        "training.",
    ]
    if len(evaluations) > 1:
        sentences.append(
            "Overlapping intervals of two runs do not test their difference: both were measured on the same patients."
        )
    return sentences


def _confusion(evaluation: Evaluation) -> Table:
    rows: list[Row] = [
        [name, *(Cell(str(count), shade=int(count) / max(1, int(counts.sum()))) for count in counts)]
        for name, counts in zip(evaluation.run.classes, evaluation.confusion, strict=True)
    ]
    caption = (
        "Rows: true class; columns: predicted class. Counts are summed over "
        f"{format_count(evaluation.n_trainings, 'training')}, percentages are of the row."
    )
    return Table(["true \\ predicted", *evaluation.run.classes], rows, caption=caption)


def _calibration(evaluation: Evaluation) -> Table:
    found = evaluation.calibration
    columns = [("as predicted", found.as_predicted)]
    note = "No temperature was fitted: that needs a validation part beside the one shown."
    if found.scaled is not None:
        columns.append(("temperature-scaled", found.scaled))
        ends = dict.fromkeys(format_number(end(found.temperatures.values()), 2) for end in (min, max))
        note = (
            f"Temperatures ({' to '.join(ends)}) were fitted on the validation part of each training; they never "
            "change the predicted class."
        )
    titles = {"ece": "expected calibration error", "nll": "negative log-likelihood", "brier": "Brier score"}
    rows = [
        [title, *(format_number(getattr(numbers, name)) for _, numbers in columns)] for name, title in titles.items()
    ]
    return Table(["", *(title for title, _ in columns)], rows, caption=f"{note} Means over seeds; smaller is better.")


def _operating(evaluation: Evaluation) -> list[Block]:
    found = evaluation.operating
    if found is None:
        return []
    ends = dict.fromkeys(format_number(end(found.point.thresholds.values())) for end in (min, max))
    caption = (
        f"A slide is called {found.point.positive} from a probability of {' to '.join(ends)} on (rule "
        f"{found.point.rule}), chosen on the validation part of each training without the test part."
    )
    row: Row = [found.point.positive, *(estimate_cell(found.metrics[name]) for name in OPERATING_TITLES)]
    table = Table(["class", *OPERATING_TITLES.values()], [row], caption=caption)
    return [Heading("At the operating threshold"), table]
