"""Predictions of slides whose outcomes are known, and of slides that the models have seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from asmil.cohort.manifest import Slide
from asmil.cohort.problems import listed
from asmil.cohort.table import label_names, number, unknown_labels
from asmil.cohort.units import Unit
from asmil.evaluation.evaluate import evaluate_run
from asmil.evaluation.run_evaluation import RunEvaluation
from asmil.runs.prediction import SlidePrediction, prediction_row
from asmil.runs.run import Run
from asmil.tasks.prediction_format import prediction_format

Predicted = Sequence[tuple[Unit, SlidePrediction]]


@dataclass(frozen=True)
class LabeledPredictions:
    """The evaluation of predictions whose outcomes are known.

    evaluation: of the slides that the models have not seen; of all, if they have seen all
    n_seen: slides that were used in training; they are left out, unless `only_seen`
    n_unlabeled: slides without an outcome, or with one that the run does not know
    """

    evaluation: RunEvaluation
    n_seen: int
    n_unlabeled: int
    only_seen: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "slides": self.evaluation.n_slides,
            "patients": self.evaluation.n_patients,
            "used_in_training": self.n_seen,
            "without_outcome": self.n_unlabeled,
            "only_used_in_training": self.only_seen,
            "metrics": {name: metric.to_dict() for name, metric in self.evaluation.metrics.items()},
        }


def evaluate_predictions(run: Run, predicted: Predicted) -> LabeledPredictions | None:
    """Metrics of the predictions whose outcomes are known; None if no outcome is known.

    Slides that were used in training are left out: their metrics would be too good.
    """
    known = [(unit, result, truth) for unit, result in predicted if (truth := truth_of(run, unit))]
    if not known:
        return None
    new = [(unit, result, truth) for unit, result, truth in known if not result.used_in_training]
    table = pd.DataFrame(
        [
            {
                "slide": unit.name,
                "patient": unit.patient,
                "fold": 0,
                "seed": 0,
                "role": "test",
                **truth,
                **result.values,
            }
            for unit, result, truth in new or known
        ]
    )
    evaluation = evaluate_run(run.with_predictions(table))
    return LabeledPredictions(evaluation, len(known) - len(new), len(predicted) - len(known), not new)


def rows_with_truth(run: Run, predicted: Predicted, more: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table of predictions; if any outcome is known, the outcomes follow the names.

    more: columns of each prediction that follow those of the task
    """
    truths = [truth_of(run, unit) for unit, _ in predicted]
    empty = dict.fromkeys(next(filter(None, truths), {}))
    rows = []
    for (_, prediction), truth, columns in zip(predicted, truths, more, strict=True):
        row = prediction_row(run, prediction, columns)
        rows.append({"slide": row.pop("slide"), **(truth or empty), **row})
    return rows


def truth_of(run: Run, unit: Unit) -> dict[str, Any] | None:
    """The outcome of a slide or patient, in the columns of a run's predictions; None if it is unknown."""
    kind, names = run.kind, run.classes
    targets = {_target(slide, kind, names) for slide in unit.slides}
    if len(targets) > 1 or None in targets:
        return None
    (target,) = targets
    columns = prediction_format(kind, names).target_columns(np.array([target]))
    return {
        name: values[0].item() if isinstance(values[0], np.generic) else values[0] for name, values in columns.items()
    }


def _target(slide: Slide, kind: str, names: tuple[str, ...]) -> Any:
    """The outcome of a slide as the number or numbers of its task; None if it is unknown."""
    if kind == "survival":
        return None if slide.time is None or slide.event is None else (slide.time, float(slide.event))
    if slide.label is None:
        return None
    if kind == "regression":
        return number(slide.label)
    if kind == "multilabel":
        labels, unknown = label_names(slide.label), unknown_labels(slide.label)
        if not labels <= set(names):
            return None
        return tuple(math.nan if name in unknown else float(name in labels) for name in names)
    return names.index(slide.label) if slide.label in names else None


def labels_unknown_to(run: Run, units: Sequence[Unit]) -> list[str]:
    """Labels in a table that the run does not know, sorted."""
    kind, names = run.kind, run.classes
    if kind not in ("classification", "multilabel"):
        return []
    given = [slide.label for unit in units for slide in unit.slides if slide.label is not None]
    labels = {name for label in given for name in (label_names(label) if kind == "multilabel" else {label})}
    return sorted(labels - set(names))


def prediction_warnings(predictions: Sequence[SlidePrediction]) -> list[str]:
    """Reasons not to believe some of the predictions, one sentence each."""
    sentences = []
    seen = [each.slide for each in predictions if each.used_in_training]
    if seen:
        sentences.append(
            f"{len(seen)} of {len(predictions)} were used in training or validation by this run ({listed(seen)}), so "
            "their predictions are better than those of new slides; the column used_in_training marks them"
        )
    return [*sentences, *other_encoder_warnings(predictions)]


def other_encoder_warnings(predictions: Sequence[SlidePrediction]) -> list[str]:
    """A sentence if some features are probably of another encoder."""
    other = [each for each in predictions if each.other_features]
    if not other:
        return []
    return [
        f"the features of {len(other)} of {len(predictions)} differ from those of the training "
        f"({listed([each.slide for each in other])}; {other[0].other_features}): they are probably of another "
        "encoder, and their predictions mean nothing; extract them like the training slides"
    ]
