"""Conformal sets and rule-outs for the predictions of a run, as columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.classification import POSITIVE
from asmil.evaluation.uncertainty.conformal import ABSTAIN, ConformalCalibration, prediction_sets, single_classes
from asmil.evaluation.uncertainty.rule_out import missed_bound, rule_out_level, ruled_out
from asmil.evaluation.uncertainty.run_calibration import calibration_of
from asmil.reporting.formats import format_count, format_share
from asmil.runs.run import Run
from asmil.tables.arrays import Floats

SET, CLASS, RULED_OUT = "conformal_set", "conformal_class", "ruled_out_"
BOUND_CONFIDENCE = 0.95
Members = Mapping[tuple[int, int], Mapping[str, Any]]
"""The predictions of the single models of a run, by fold and seed."""


@dataclass(frozen=True)
class SetRequest:
    """Which sets are asked for.

    coverage: the share of patients whose true class is to be in the set; None: no sets
    per_class: of the patients of each class, rather than of all
    max_missed: the share of patients of the class `positive` that may be ruled out wrongly; None: no rule-out
    positive: default: the second of two classes
    confidence: of `max_missed`; None: on average over calibration sets
    """

    coverage: float | None = None
    per_class: bool = False
    max_missed: float | None = None
    positive: str | None = None
    confidence: float | None = None

    def prepare(self, run: Run) -> PredictedSets | None:
        """Calibrate on the run, or refuse what cannot be guaranteed; None if nothing is asked for."""
        if self.coverage is None and self.per_class:
            raise AsmilError("--per-class needs --coverage, e.g. --coverage 0.9")
        if self.max_missed is None and not (self.positive is None and self.confidence is None):
            raise AsmilError("--positive and --confidence need --max-missed, e.g. --max-missed 0.05")
        if self.coverage is None and self.max_missed is None:
            return None
        calibration = calibration_of(run)
        if self.coverage is not None:
            calibration.refuse_too_few(self.coverage, self.per_class)
        if self.max_missed is None:
            return PredictedSets(self, calibration)
        positive = self._positive(run)
        n_patients = calibration.n_patients(positive)
        level = rule_out_level(n_patients, self.max_missed, run.classes[positive], self.confidence)
        return PredictedSets(self, calibration, positive, level)

    def _positive(self, run: Run) -> int:
        if self.positive in run.classes:
            return run.classes.index(self.positive)
        if self.positive is not None:
            raise AsmilError(
                f"--positive: the run has no class '{self.positive}'; {did_you_mean(self.positive, run.classes)}"
            )
        if len(run.classes) != 2:
            raise AsmilError(f"--max-missed needs --positive, one of {', '.join(run.classes)}")
        return POSITIVE


@dataclass(frozen=True, eq=False)
class PredictedSets:
    """Predicts sets for new cases; positive, level: of the rule-out, if it is asked for."""

    asked: SetRequest
    calibration: ConformalCalibration
    positive: int | None = None
    level: float = 0.0

    @cached_property
    def _of_rule_out(self) -> ConformalCalibration:
        # with a confidence, a patient is missed if any slide is
        return self.calibration if self.asked.confidence is None else self.calibration.by_patient("min")

    def columns(self, members: Members) -> dict[str, Any]:
        """The columns of one case, from the predictions of all models of the run."""
        columns: dict[str, Any] = {}
        by_fold = _mean_by_fold(members)
        if self.asked.coverage is not None:
            sets = prediction_sets(self.calibration.p_values(by_fold, self.asked.per_class), self.asked.coverage)
            names = [name for name, inside in zip(self.calibration.classes, sets[0], strict=True) if inside]
            columns |= {SET: ";".join(names), CLASS: single_classes(sets, self.calibration.classes)[0]}
        if self.positive is not None:
            p_values = self._of_rule_out.p_values(by_fold, per_class=True)[:, self.positive]
            columns[RULED_OUT + self.calibration.classes[self.positive]] = bool(ruled_out(p_values, self.level)[0])
        return columns

    def sentences(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """What was predicted and what holds for it, one sentence per request."""
        sentences, asked = [], self.asked
        folds = len(np.unique(self.calibration.folds))
        if asked.coverage is not None:
            of = " of each class" if asked.per_class else ""
            abstained = sum(row[CLASS] == ABSTAIN for row in rows)
            patients = format_count(self.calibration.n_patients(), "validation patient")
            of_folds = f"{patients} of {format_count(folds, 'fold')}"
            sentences.append(
                f"sets for a coverage of {asked.coverage:g}{of}, calibrated on {of_folds}: "
                f"{abstained} of {len(rows)} abstain"
            )
        if self.positive is not None and asked.max_missed is not None:
            name = self.calibration.classes[self.positive]
            n_patients = self.calibration.n_patients(self.positive)
            count = sum(row[RULED_OUT + name] for row in rows)
            bound = missed_bound(n_patients, self.level, asked.confidence or BOUND_CONFIDENCE)
            average = f"at most {format_share(asked.max_missed)} on average, and " if asked.confidence is None else ""
            sentences.append(
                f"{name} is ruled out for {count} of {len(rows)}; calibrated on {n_patients} of its validation "
                f"patients to miss {average}at most {format_share(bound)} with a confidence of "
                f"{asked.confidence or BOUND_CONFIDENCE:g}"
            )
        return sentences


def _mean_by_fold(members: Members) -> dict[int, Floats]:
    """1 x C per fold: the mean probabilities of its seeds."""
    by_fold: dict[int, list[list[float]]] = {}
    for (fold, _), values in members.items():
        by_fold.setdefault(fold, []).append([float(value) for value in values.values()])
    return {fold: np.mean(of_seeds, axis=0, keepdims=True) for fold, of_seeds in by_fold.items()}
