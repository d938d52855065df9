"""How certain the predictions of new slides are: disagreement of models, conformal sets, similarity to the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asmil.cohort.units import Unit
from asmil.evaluation.statistics import benjamini_hochberg
from asmil.evaluation.uncertainty.disagreement import disagreement_columns
from asmil.evaluation.uncertainty.predicted_sets import PredictedSets, SetRequest
from asmil.evaluation.uncertainty.similarity import (
    COHORT_LEVEL,
    FEWEST_IN_COHORT,
    FEWEST_PATIENTS,
    FILE,
    Similarity,
    read_similarity,
)
from asmil.reporting.formats import format_p
from asmil.runs.prediction import SlidePrediction
from asmil.runs.run import Run

SIMILARITY = "similarity_p"
FALSE_DISCOVERIES, NAMED = 0.05, 3
"""Largest share of false alarms among slides that are reported as unlike the training; slides that a warning names."""


@dataclass(frozen=True)
class Certainty:
    """What a run says about the certainty of its predictions."""

    run: Run
    sets: PredictedSets | None
    similarity: Similarity | None

    @classmethod
    def of(cls, run: Run, asked: SetRequest) -> Certainty:
        """Read from a run or bundle; sets that cannot be guaranteed are refused."""
        return cls(run, asked.prepare(run), read_similarity(run.path))

    def columns(self, prediction: SlidePrediction) -> dict[str, Any]:
        """The columns of one prediction."""
        columns: dict[str, Any] = disagreement_columns(self.run.kind, list(prediction.members.values()))
        if self.sets is not None:
            columns |= self.sets.columns(prediction.members)
        if self.similarity is not None:
            columns[SIMILARITY] = self.similarity.p_value_of_joined(prediction.feature_means)
        return columns

    def warnings(self, predicted: Sequence[tuple[Unit, SlidePrediction]]) -> list[str]:
        """At most one sentence: which new slides are unlike the training slides, and whether all of them differ."""
        new = [(unit, each) for unit, each in predicted if not each.used_in_training and not each.other_features]
        if self.similarity is None or not new:
            return []
        p_values = np.array([self.similarity.p_value_of_joined(each.feature_means) for _, each in new])
        adjusted = benjamini_hochberg(p_values)
        # p-values of slides farther away than all training slides are equal
        distances = [self.similarity.mean_distances(each.feature_means).max() for _, each in new]
        order = np.lexsort((-np.array(distances), p_values))
        unlike = [new[i][0].name for i in order if adjusted[i] <= FALSE_DISCOVERIES]
        found = []
        if unlike:
            worst = f"lowest: {', '.join(unlike[:NAMED])}" if len(unlike) > NAMED else ", ".join(unlike)
            counted = f"{len(unlike)} of {len(new)} {self.run.unit}s"
            found.append(f"{counted} are unlike the training slides ({SIMILARITY}; {worst})")
        means = [(unit.patient, mean) for unit, each in new for mean in each.feature_means]
        if len({patient for patient, _ in means}) >= FEWEST_IN_COHORT:
            patients, summaries = zip(*means, strict=True)
            p = self.similarity.cohort_p_value(np.stack(summaries), patients)
            if p <= COHORT_LEVEL:
                found.append(f"the {self.run.unit}s as a whole differ from the training slides (p {format_p(p)})")
        about = "; the metrics of the run may not hold for them"
        return ["; ".join(found) + about] if found else []

    @property
    def missing(self) -> str:
        """Why it is unknown whether slides are like the training slides; empty if it is known."""
        if self.similarity is not None:
            return ""
        remedy = "export the run again" if self.run.is_bundle else "run its `asmil train` command again"
        return (
            f"whether the slides are like the training slides is unknown: {self.run.path} has no {FILE} (an earlier "
            f"version: {remedy}; or fewer than {FEWEST_PATIENTS} training patients)"
        )
