"""Prediction targets of slides and patients as numbers, and the strata that splits balance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.problems import Problem, fail, raise_errors
from asmil.cohort.table import LABEL_SEPARATOR, OUTCOME_COLUMNS, label_names, number, unknown_labels
from asmil.cohort.units import Unit
from asmil.tasks.base import TaskKind

VALUE_STRATA = 4
FEWEST_IN_STRATUM = 10


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of n units.

    names: the classes or labels that targets refer to; empty for values and times
    targets: n class indices, n values, n x K labels of 0 and 1 (floats with nan if some are unknown), or n x 2 times
        and events
    strata: n, the group of each unit, by which splits are stratified
    stratum_names: the names of these groups
    needed: the groups that training and evaluation require
    """

    kind: TaskKind
    names: tuple[str, ...]
    targets: NDArray[Any]
    strata: NDArray[np.int64]
    stratum_names: tuple[str, ...]
    needed: tuple[int, ...]

    def among(self, indices: Sequence[int]) -> Outcomes:
        """The outcomes of some of the units; groups that depend on several outcomes are computed from these alone."""
        targets, strata, names = self.targets[list(indices)], self.strata[list(indices)], self.stratum_names
        if self.kind == "regression":
            strata, names = value_strata(targets)
        elif self.kind == "multilabel":
            strata, names = _label_strata(targets, self.names)
        return replace(self, targets=targets, strata=strata, stratum_names=names)


def outcomes_of(cohort: Cohort, units: Sequence[Unit], kind: TaskKind) -> Outcomes:
    """The outcomes of units of a cohort; slides of one unit with different outcomes are an error."""
    raise_errors(contradictions(cohort, units, kind))
    slides = [unit.slides[0] for unit in units]
    read = {"classification": _classes, "survival": _times, "regression": _values, "multilabel": _labels}[kind]
    return read(cohort, slides)


def contradictions(cohort: Cohort, units: Sequence[Unit], kind: TaskKind) -> list[Problem]:
    """Units whose slides have different outcomes."""
    problems = []
    columns = OUTCOME_COLUMNS[kind]
    for unit in units:
        if len({stated_outcome(slide, kind) for slide in unit.slides}) > 1:
            what = f"the slides of patient '{unit.patient}' differ in {' or '.join(columns)}"
            todo = "give all slides of a patient the same value, or predict slides (data.unit=slide)"
            problems.append(Problem("error", str(cohort.path), what, todo))
    return problems


def stated_outcome(slide: Slide, kind: TaskKind) -> Hashable:
    """The outcome in a row; `a;b` and `b;a` are the same labels, 1 and 1.0 the same value."""
    if kind == "survival":
        return slide.time, slide.event
    if kind == "multilabel":
        return frozenset(label_names(slide.label or "")), frozenset(unknown_labels(slide.label or ""))
    return number(slide.label or "") if kind == "regression" else slide.label


def _classes(cohort: Cohort, slides: Sequence[Slide]) -> Outcomes:
    if len(cohort.classes) < 2:
        what = f"there is only one class ('{cohort.classes[0]}')" if cohort.classes else "there are no labels"
        fail(cohort.path, what, "a classifier needs slides of at least two classes")
    targets = np.array([cohort.target(slide) for slide in slides], dtype=np.int64)
    everyone = tuple(range(len(cohort.classes)))
    return Outcomes("classification", cohort.classes, targets, targets, cohort.classes, everyone)


def _times(cohort: Cohort, slides: Sequence[Slide]) -> Outcomes:
    targets = np.array([(slide.time, slide.event) for slide in slides], dtype=np.float64)
    if not targets[:, 1].any():
        fail(cohort.path, "no patient has an event", "a survival model needs patients with an observed event")
    strata = targets[:, 1].astype(np.int64)
    return Outcomes("survival", (), targets, strata, ("censored", "event"), (1,))


def _values(cohort: Cohort, slides: Sequence[Slide]) -> Outcomes:
    targets = np.array([number(slide.label or "") for slide in slides], dtype=np.float64)
    if np.ptp(targets) == 0:
        fail(cohort.path, f"all values are {targets[0]:g}", "a regression needs different values")
    return Outcomes("regression", (), targets, *value_strata(targets), ())


def value_strata(values: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The quartile of each value, and the names of the quartiles."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    names = tuple(f"quarter {k + 1} of the values" for k in range(VALUE_STRATA))
    return ranks * VALUE_STRATA // max(len(values), 1), names


def _labels(cohort: Cohort, slides: Sequence[Slide]) -> Outcomes:
    labels = [label_names(slide.label or "") for slide in slides]
    names = tuple(sorted(set[str]().union(*labels)))
    if not names:
        fail(cohort.path, "no slide has a label", f"enter labels in column 'label', separated by {LABEL_SEPARATOR!r}")
    targets: NDArray[Any] = np.array([[name in of_slide for name in names] for of_slide in labels], dtype=np.int64)
    unknown = np.array([[name in unknown_labels(slide.label or "") for name in names] for slide in slides])
    if unknown.any():
        targets = np.where(unknown, np.nan, targets).astype(np.float32)
    return Outcomes("multilabel", names, targets, *_label_strata(targets, names), ())


def _label_strata(targets: NDArray[Any], names: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The group of each slide: the rarest of its frequent labels."""
    counts = (targets == 1).sum(axis=0)
    frequent = [k for k in range(len(names)) if counts[k] >= FEWEST_IN_STRATUM]
    rarest_first = sorted(frequent, key=lambda k: counts[k])
    strata = np.full(len(targets), len(rarest_first), dtype=np.int64)
    for stratum, k in reversed(list(enumerate(rarest_first))):
        strata[targets[:, k] == 1] = stratum
    return strata, (*(names[k] for k in rarest_first), "without a frequent label")
