"""Divide slides into splits, grouped by patient and stratified by label."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.problems import Problem, fail, listed, raise_errors

FINEST_SHARE = 10


@dataclass(frozen=True)
class Subjects:
    """Slides sorted by name, as arrays, so that the order of the manifest's rows does not matter.

    targets: the class of each slide, or its group of outcomes
    needed: the classes that every split must contain for training and evaluation
    """

    where: str
    names: NDArray[Any]
    patients: NDArray[Any]
    targets: NDArray[np.int64]
    classes: tuple[str, ...]
    needed: tuple[int, ...]

    def patients_per_class(self, part: NDArray[np.int64]) -> Counter[int]:
        """How many patients of a part have a slide of each class."""
        return Counter(target for _, target in set(zip(self.patients[part], self.targets[part].tolist(), strict=True)))


def stratified_folds(subjects: Subjects, part: NDArray[np.int64], count: int, seed: int) -> list[NDArray[np.int64]]:
    """Divide a part into `count` folds of whole patients with nearly equal shares of every class.

    Patients are assigned class by class, the rarest class first, in a random order with the patients with most slides
    first: each goes to the fold with the fewest patients of the class, and among those to the one with the fewest
    slides. The folds therefore differ by at most one patient per class, however many slides a patient has.
    """
    patients, owner = np.unique(subjects.patients[part], return_inverse=True)
    stratum = _rarest_class(owner, subjects.targets[part], len(patients))
    n_slides = np.bincount(owner, minlength=len(patients))
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(patients))
    order = order[np.argsort(-n_slides[order], kind="stable")]
    first = draw.permutation(count)
    fold_of = np.empty(len(patients), dtype=np.int64)
    slides_in = np.zeros(count, dtype=np.int64)
    classes, sizes = np.unique(stratum, return_counts=True)
    for target in classes[np.argsort(sizes, kind="stable")]:
        patients_in = np.zeros(count, dtype=np.int64)
        for patient in order[stratum[order] == target]:
            fold = np.lexsort((first, slides_in, patients_in))[0]
            fold_of[patient] = fold
            patients_in[fold] += 1
            slides_in[fold] += n_slides[patient]
    return [part[fold_of[owner] == fold] for fold in range(count)]


def _rarest_class(owner: NDArray[np.int64], targets: NDArray[np.int64], n_patients: int) -> NDArray[np.int64]:
    """For every patient, the rarest of the classes of its slides, by number of patients."""
    pairs = np.unique(np.stack([owner, targets], axis=1), axis=0)
    holders = np.bincount(pairs[:, 1])
    rarest_last = pairs[np.argsort(-holders[pairs[:, 1]], kind="stable")]
    stratum = np.empty(n_patients, dtype=np.int64)
    stratum[rarest_last[:, 0]] = rarest_last[:, 1]
    return stratum


def hold_out(subjects: Subjects, part: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """About `share` of a part: a few folds of a division as fine as the rarest class allows."""
    if share <= 0:
        return part[:0]
    finest = min(FINEST_SHARE, _rarest_count(subjects, part))
    fraction = Fraction(share).limit_denominator(finest)
    count = max(fraction.denominator, 2) if fraction.numerator else finest
    taken = min(max(round(share * count), 1), count - 1)
    return np.concatenate(stratified_folds(subjects, part, count, seed)[:taken])


def _rarest_count(subjects: Subjects, part: NDArray[np.int64]) -> int:
    """Number of patients of the rarest needed class; of all patients if no class is needed."""
    counts = subjects.patients_per_class(part)
    # in the order of the classes, so that the error does not depend on the order of the patients
    needed = {target: counts[target] for target in sorted(set(counts) & set(subjects.needed))}
    if not needed:
        needed = {int(subjects.targets[part][0]): len(set(subjects.patients[part]))}
    rarest = min(needed, key=lambda target: needed[target])
    if needed[rarest] < 2:
        what = f"class '{subjects.classes[rarest]}' has {needed[rarest]} patient, but needs at least two"
        fail(subjects.where, what, "add patients of this class or leave it out (train, val and test need one each)")
    return needed[rarest]


def refuse_rare(subjects: Subjects, folds: int) -> None:
    """Raise if a class has fewer patients than there are folds."""
    counts = subjects.patients_per_class(np.arange(len(subjects.names)))
    problems = []
    for target in subjects.needed:
        if (count := counts[target]) < folds:
            what = f"class '{subjects.classes[target]}' has {count} patients, fewer than the {folds} folds"
            todo = f"use at most {count} folds, add patients or leave the class out"
            problems.append(Problem("error", subjects.where, what, todo))
    raise_errors(problems)


def refuse_absent(subjects: Subjects, roles: list[NDArray[Any]], own_split: bool) -> None:
    """Raise if a class is missing from a training set or from a generated test set, where AUC would be undefined."""
    needed = ["train"] if own_split else ["train", "test"]
    problems = []
    for fold, part in enumerate(roles):
        for role in needed:
            members = part == role
            if role == "test" and not members.any():
                continue
            absent = sorted(set(subjects.needed) - set(subjects.targets[members]))
            if names := [subjects.classes[target] for target in absent]:
                what = f"no {role} slide of fold {fold} belongs to class {listed(names)}"
                todo = "add patients of the class, leave it out, or use fewer folds"
                problems.append(Problem("error", subjects.where, what, todo))
    raise_errors(problems)
