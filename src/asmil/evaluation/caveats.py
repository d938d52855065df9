"""What a reader must know to read the numbers of a report, in words."""

from __future__ import annotations

from collections.abc import Sequence

from asmil.evaluation.run_sentences import sentences_of_runs
from asmil.evaluation.summary import Evaluation


def caveats_of(evaluations: Sequence[Evaluation]) -> list[str]:
    """Sentences that hold for all runs, then those of single runs."""
    sentences = [
        "Values are means over seeds of the metric on all slides of the part, the folds of a seed joined. "
        "The predicted class is the one with the highest probability. Macro averages give every class the "
        "same weight; macro-AUC is the mean of the one-vs-rest AUCs.",
        "Intervals hold the middle 95 % of a bootstrap over patients: patients are drawn with replacement, "
        "each with all its slides. They say how much the choice of patients matters; the noise of training "
        "is the standard deviation (sd) over seeds.",
    ]
    if len({_slides(evaluation) for evaluation in evaluations}) > 1:
        sentences.append("The runs were not evaluated on the same slides; their numbers do not compare.")
    elif len(evaluations) > 1:
        sentences.append(
            "Overlapping intervals of two runs are no test of their difference: both were measured on the "
            "same patients."
        )
    return sentences + sentences_of_runs(evaluations)


def _slides(evaluation: Evaluation) -> frozenset[str]:
    return frozenset(slide for part in evaluation.replicates for slide in part.slides)
