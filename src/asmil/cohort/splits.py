"""Training, validation and test parts: grouped by patient, stratified by label, reproducible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from asmil.cohort.holdout import Subjects, hold_out, refuse_absent, refuse_rare, stratified_folds
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.manifest import Cohort
from asmil.cohort.problems import fail, listed
from asmil.files import replacing

__all__ = ["ROLES", "Roles", "Splits", "make_splits", "refuse_leakage"]

Roles = Literal["train", "val", "test"]
ROLES: tuple[Roles, ...] = ("train", "val", "test")
COLUMNS = ["slide", "patient", "fold", "role"]


@dataclass(frozen=True, eq=False)
class Splits:
    """Which slide plays which role in which fold: a table of slide, patient, fold, role."""

    table: pd.DataFrame

    @property
    def n_folds(self) -> int:
        """The number of folds; they are numbered from 0."""
        return int(self.table["fold"].max()) + 1

    def slides(self, fold: int, role: Roles) -> list[str]:
        """The names of the slides with a role in a fold."""
        chosen = (self.table["fold"] == fold) & (self.table["role"] == role)
        return [str(name) for name in self.table.loc[chosen, "slide"]]

    def save(self, path: Path | str) -> None:
        """Write the table as CSV, whole or not at all."""
        with replacing(path) as partial:
            self.table.to_csv(partial, index=False)

    @classmethod
    def load(cls, path: Path | str) -> Splits:
        """Read a table that `save` wrote."""
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
        except FileNotFoundError:
            fail(path, "the file of splits does not exist", "correct its path")
        except (OSError, ValueError) as error:
            fail(path, f"the splits cannot be read ({error})", "make them again")
        missing = [name for name in COLUMNS if name not in table.columns]
        if missing or len(table) == 0:
            fail(path, f"a table of {', '.join(COLUMNS)} is expected", "make the splits again")
        unknown = sorted(set(table["role"]) - set(ROLES))
        if unknown or not table["fold"].str.isdecimal().all():
            fail(path, f"a role or a fold cannot be read ({listed(unknown)})", "make the splits again")
        return cls(table[COLUMNS].astype({"fold": int}))


def make_splits(
    cohort: Cohort, folds: int = 1, seed: int = 0, val_share: float = 0.15, test_share: float = 0.25
) -> Splits:
    """The manifest's own split or folds if it has them, else generated ones.

    Two folds or more are made anew even if there is a column `split`, which can tell of one only.

    folds: 1 for one split, 2 or more for cross-validation (every patient is tested exactly once)
    test_share: of the cohort, for one generated split; cross-validation tests 1 / folds of it
    val_share: of what is not tested, where the manifest names no validation slides
    Shares are met as nearly as whole patients of the rarest class allow.
    """
    _refuse_request(cohort, folds, val_share, test_share)
    slides = sorted(cohort.slides, key=lambda slide: slide.slide)
    subjects = Subjects(
        str(cohort.path),
        np.array([slide.slide for slide in slides], dtype=object),
        np.array([slide.patient for slide in slides], dtype=object),
        np.array([cohort.target(slide) for slide in slides], dtype=np.int64),
        cohort.classes,
    )
    everything = np.arange(len(slides))
    given = [slide.split for slide in slides if slide.split is not None and folds == 1]
    own = np.array([slide.fold for slide in slides if slide.fold is not None])
    if given:
        roles = [np.array(given, dtype=object)]
    elif len(own):
        roles = [_with_test(everything, np.flatnonzero(own == fold)) for fold in range(own.max() + 1)]
    elif folds > 1:
        refuse_rare(subjects, folds)
        roles = [_with_test(everything, test) for test in stratified_folds(subjects, everything, folds, seed)]
    else:
        roles = [_with_test(everything, hold_out(subjects, everything, test_share, seed))]
    for fold, part in enumerate(roles):
        train = np.flatnonzero(part == "train")
        if len(train) and "val" not in part:
            part[hold_out(subjects, train, val_share, seed + 1 + fold)] = "val"
    refuse_absent(subjects, roles, own_split=bool(given) or len(own) > 0)
    tables = [
        pd.DataFrame({"slide": subjects.names, "patient": subjects.patients, "fold": fold, "role": part})
        for fold, part in enumerate(roles)
    ]
    return Splits(pd.concat(tables, ignore_index=True))


def _with_test(everything: NDArray[np.int64], test: NDArray[np.int64]) -> NDArray[Any]:
    return np.where(np.isin(everything, test), "test", "train").astype(object)


def _refuse_request(cohort: Cohort, folds: int, val_share: float, test_share: float) -> None:
    own_folds = {slide.fold for slide in cohort.slides if slide.fold is not None}
    if not cohort.slides:
        fail(cohort.path, "there are no slides to split", "correct the manifest")
    if folds < 1:
        fail(cohort.path, f"{folds} folds cannot be made", "give 1 (one split) or more")
    for name, share in (("val_share", val_share), ("test_share", test_share)):
        if not 0 <= share < 1:
            fail(cohort.path, f"{name} {share} cannot be met", "give a share from 0 to less than 1")
    if own_folds and folds not in (1, len(own_folds)):
        what = f"the manifest's column 'fold' makes {len(own_folds)} folds, not {folds}"
        fail(cohort.path, what, "remove the column or ask for its number of folds")
    if len(cohort.classes) < 2:
        what = f"there is only one class ('{cohort.classes[0]}')" if cohort.classes else "there are no labels"
        fail(cohort.path, what, "a classifier needs slides of two classes or more")
