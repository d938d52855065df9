"""Conformal prediction sets of classes, calibrated on held-out patients.

A set contains every class whose p-value exceeds 1 - coverage. The score of a class is minus its probability, so the
sets are as small as the probabilities allow; `held_out` says what is guaranteed. Split conformal sets contain the true
class of a share `coverage` of all patients, class-conditional (Mondrian) ones of the patients of each class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError
from asmil.evaluation.uncertainty.held_out import ROUNDING, HeldOutScores, pooled_p_values
from asmil.tables.arrays import Booleans, Floats, Integers

ABSTAIN = "abstain"


@dataclass(frozen=True, eq=False)
class ConformalCalibration:
    """The held-out cases of all folds (n): nothing else is needed to predict sets, and no names.

    folds: n, the fold whose models predicted the case, but were not fitted on it
    targets: n, the index of the true class
    patients: n, numbers of patients
    probabilities: n, of the true class
    """

    classes: tuple[str, ...]
    folds: Integers
    targets: Integers
    patients: Integers
    probabilities: Floats

    @classmethod
    def of(
        cls,
        classes: Sequence[str],
        folds: npt.ArrayLike,
        targets: npt.ArrayLike,
        patients: Sequence[object],
        probabilities: npt.ArrayLike,
    ) -> ConformalCalibration:
        """From the probabilities of all classes (n x C) and the names of patients."""
        truth = np.asarray(targets, dtype=np.int64)
        of_truth = np.asarray(probabilities, dtype=np.float64)[np.arange(len(truth)), truth]
        _, numbers = np.unique(np.asarray([str(patient) for patient in patients]), return_inverse=True)
        return cls(tuple(classes), np.asarray(folds, np.int64), truth, numbers.astype(np.int64), of_truth)

    def n_patients(self, target: int | None = None) -> int:
        """The number of different patients, or of those of one class."""
        return len(np.unique(self.patients if target is None else self.patients[self.targets == target]))

    def by_patient(self, how: str = "mean") -> ConformalCalibration:
        """One case per fold, patient and class, for mean predictions of patients; how: or `min`, the worst slide."""
        table = pd.DataFrame(
            {"fold": self.folds, "target": self.targets, "patient": self.patients, "value": self.probabilities}
        )
        joined = table.groupby(["fold", "patient", "target"], as_index=False)["value"].agg(how)
        columns = (joined[name].to_numpy() for name in ("fold", "target", "patient", "value"))
        return ConformalCalibration(self.classes, *columns)

    def p_values(self, by_fold: Mapping[int, npt.ArrayLike], per_class: bool = False) -> Floats:
        """n x C, the p-value of every class for n new cases.

        by_fold: the probabilities (n x C) that the models of each fold predict
        per_class: compare each class with the held-out patients of that class alone
        """
        missing = sorted(set(np.unique(self.folds).tolist()) - set(by_fold))
        if missing:
            raise AsmilError(f"the predictions of fold {missing[0]} are missing; give those of all calibrated folds")
        predicted = {fold: np.asarray(by_fold[fold], dtype=np.float64) for fold in np.unique(self.folds).tolist()}
        columns = []
        for target in range(len(self.classes)):
            counted = self.targets == target if per_class else np.ones(len(self.targets), np.bool_)
            held_out = [self._scores(counted & (self.folds == fold)) for fold in predicted]
            columns.append(pooled_p_values(held_out, [-of_fold[:, target] for of_fold in predicted.values()]))
        return np.stack(columns, axis=1)

    def _scores(self, counted: Booleans) -> HeldOutScores:
        return HeldOutScores.of(-self.probabilities[counted], self.patients[counted])

    def refuse_too_few(self, coverage: float, per_class: bool = False) -> None:
        """Raise if there are so few patients that every set would contain every class."""
        if not 0 < coverage < 1:
            raise AsmilError(f"the coverage must be between 0 and 1, e.g. 0.9, not {coverage:g}")
        for target, name in enumerate(self.classes) if per_class else [(None, "")]:
            refuse_fewer(self.n_patients(target), fewest_patients(1 - coverage), f"a coverage of {coverage:g}", name)


def fewest_patients(alpha: float) -> int:
    """The smallest number of calibration patients with which a p-value can be alpha or less: ceil(1 / alpha) - 1.

    >>> fewest_patients(0.1), fewest_patients(0.05)
    (9, 19)
    """
    return math.ceil(1 / alpha - ROUNDING) - 1


def prediction_sets(p_values: Floats, coverage: float) -> Booleans:
    """n x C, whether each class is in the set of each case."""
    return np.asarray(p_values > 1 - coverage + ROUNDING)


def single_classes(sets: Booleans, classes: Sequence[str]) -> list[str]:
    """The class of each set with one class, and `abstain` for all other sets, also empty ones."""
    return [classes[int(np.argmax(row))] if row.sum() == 1 else ABSTAIN for row in sets]


def coverage_table(
    sets: Booleans,
    targets: npt.ArrayLike,
    patients: Sequence[object],
    groups: Mapping[str, Sequence[object]] | None = None,
) -> pd.DataFrame:
    """Coverage and the share abstained, of all cases and of each group; every patient counts once.

    groups: columns of n values, e.g. the class or the site
    columns: `by`, `group`, `patients`, `coverage`, `abstained`, `mean_size` of the sets
    """
    truth = np.asarray(targets, dtype=np.int64)
    cases = pd.DataFrame(
        {
            "patient": [str(patient) for patient in patients],
            "coverage": sets[np.arange(len(truth)), truth].astype(float),
            "abstained": (sets.sum(axis=1) != 1).astype(float),
            "mean_size": sets.sum(axis=1).astype(float),
        }
    )
    rows = []
    for by, values in {"all": ["all"] * len(cases), **(groups or {})}.items():
        for group, part in cases.groupby(pd.Series([str(value) for value in values], dtype=object), sort=True):
            means = part.groupby("patient")[["coverage", "abstained", "mean_size"]].mean()
            rows.append({"by": by, "group": group, "patients": len(means), **means.mean().to_dict()})
    return pd.DataFrame(rows)


def refuse_fewer(n_patients: int, needed: int, asked: str, name: str) -> None:
    """Raise if there are fewer calibration patients than needed; name: of the class that they belong to."""
    if n_patients < needed:
        of_class = f" of the class '{name}'" if name else ""
        raise AsmilError(
            f"{asked} needs at least {needed} validation patients{of_class}, but the run has {n_patients}; ask for "
            "less, or train with more validation patients (data.val_share)"
        )
