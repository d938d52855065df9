"""What a reader must know to read the numbers of a report, in words."""

from __future__ import annotations

from collections.abc import Sequence

from asmil.evaluation.summary import Evaluation

SELECTION_RULES = {"f1_auc": "the highest macro-F1 + macro-AUC", "loss": "the lowest loss"}


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
    for evaluation in evaluations:
        prefix = f"{evaluation.name}: " if len(evaluations) > 1 else ""
        sentences += [prefix + text for text in (_selection(evaluation), _cap(evaluation))]
        sentences += [prefix + text for text in evaluation.warnings]
    return sentences


def _slides(evaluation: Evaluation) -> frozenset[str]:
    return frozenset(slide for part in evaluation.replicates for slide in part.slides)


def _selection(evaluation: Evaluation) -> str:
    rule = evaluation.run.setting("training", "select")
    if rule is None:
        return "The run does not say which epoch was kept (training.select is not set)."
    if rule == "last":
        return "The last epoch was kept; no data chose it (training.select: last)."
    if not (evaluation.run.predictions["role"] == "val").any():
        return "The run had no validation slides, so the last epoch was kept."
    chosen = f"The epoch was chosen on the validation part, by {SELECTION_RULES.get(rule, rule)}"
    if evaluation.role == "val":
        return f"{chosen}, the same part these numbers are of: they are optimistic."
    return f"{chosen}; the test part was not looked at."


def _cap(evaluation: Evaluation) -> str:
    cap = evaluation.run.setting("data", "max_tiles")
    if cap is None:
        return "Training and prediction used all tiles of every slide (data.max_tiles is not set)."
    return (
        f"Training saw at most {cap} tiles of a slide, drawn anew every epoch (data.max_tiles); "
        "prediction used all tiles."
    )
