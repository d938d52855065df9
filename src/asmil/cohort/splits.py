"""Training, validation and test sets: grouped by patient, stratified by outcome, reproducible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from asmil.cohort.holdout import Subjects, hold_out, refuse_absent, refuse_rare, stratified_folds
from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.problems import fail, listed
from asmil.cohort.table import whole_number
from asmil.cohort.units import Unit
from asmil.files import replacing
from asmil.tables.names import plain_spaces
from asmil.tables.text_table import read_text_table
from asmil.tasks.base import TaskKind

Roles = Literal["train", "val", "test"]
ROLES: tuple[Roles, ...] = ("train", "val", "test")
COLUMNS = ["slide", "patient", "fold", "role"]
AGAIN = "make the splits again"
TEST_SITE = "test_site"
"""The column of the site that a fold tests, if each fold tests one site."""


class FoldNames(dict[int, str]):
    """How folds are called: by the site they test, else by their number."""

    def __missing__(self, fold: int) -> str:
        return f"fold {fold}"


@dataclass(frozen=True, eq=False)
class Splits:
    """The role of each slide in each fold: a table of slide, patient, fold, role.

    If each fold tests one site, the column `test_site` has its name.
    """

    table: pd.DataFrame

    @property
    def sites(self) -> dict[int, str]:
        """The site that each fold tests; empty if folds do not test single sites."""
        if TEST_SITE not in self.table:
            return {}
        first = self.table.drop_duplicates("fold")
        return dict(zip(first["fold"].tolist(), first[TEST_SITE].astype(str), strict=True))

    @property
    def fold_names(self) -> FoldNames:
        return FoldNames({fold: f"site {site}" for fold, site in self.sites.items()})

    @property
    def n_folds(self) -> int:
        """The number of folds; they are numbered from 0."""
        return int(self.table["fold"].max()) + 1

    def slides(self, fold: int, role: Roles) -> list[str]:
        """The names of the slides with a role in a fold."""
        chosen = (self.table["fold"] == fold) & (self.table["role"] == role)
        return [str(name) for name in self.table.loc[chosen, "slide"]]

    def save(self, path: Path | str) -> None:
        """Write the table as CSV, atomically."""
        with replacing(path) as partial:
            self.table.to_csv(partial, index=False)

    @classmethod
    def load(cls, path: Path | str) -> Splits:
        """Read a table that `save` wrote."""
        table = read_text_table(Path(path))
        if any(name not in table.names for name in COLUMNS):
            fail(path, f"the table must have the columns {', '.join(COLUMNS)}", AGAIN)
        columns = zip(table.names, table.cells, strict=True)
        cells = {name: [plain_spaces(cell) for cell in column] for name, column in columns}
        if unknown := sorted(set(cells["role"]) - set(ROLES)):
            fail(path, f"there are unknown roles ({listed(unknown)})", AGAIN)
        folds = [whole_number(cell) for cell in cells["fold"]]
        if sorted({-1 if fold is None else fold for fold in folds}) != list(range(len(set(folds)))):
            fail(path, f"the folds are not 0, 1, 2, ... ({listed(sorted(set(cells['fold'])))})", AGAIN)
        if not all(cells["slide"]):
            fail(path, "a row has no slide", AGAIN)
        known = [*COLUMNS, *[TEST_SITE] * (TEST_SITE in table.names)]
        roles = pd.DataFrame({name: cells[name] for name in known} | {"fold": folds})
        if untrained := sorted(set(roles["fold"]) - set(roles.loc[roles["role"] == "train", "fold"])):
            fail(path, f"there are no training slides in fold {untrained[0]}", AGAIN)
        return cls(roles)


def make_splits(
    cohort: Cohort,
    folds: int = 1,
    seed: int = 0,
    val_share: float = 0.15,
    test_share: float = 0.25,
    kind: TaskKind = "classification",
    by_site: bool = False,
) -> Splits:
    """The split or folds of the manifest if it has them, else generated ones.

    With two or more folds a column `split` is ignored, since it describes a single split.

    folds: 1 for one split, 2 or more for cross-validation (every patient is tested exactly once)
    test_share: share of the cohort for testing, in one generated split; cross-validation tests 1 / folds of it
    val_share: share of the non-test slides for validation, if the manifest has no validation slides
    kind: the task, by whose outcomes splits are stratified
    by_site: every fold tests the slides of one site
    Shares are met as closely as whole patients of the rarest class allow.
    """
    _refuse_request(cohort, folds, val_share, test_share)
    subjects, slides = subjects_of(cohort, kind)
    everything = np.arange(len(slides))
    given = [slide.split for slide in slides if slide.split is not None and folds == 1]
    own = np.array([slide.fold for slide in slides if slide.fold is not None])
    sites: list[str] = []
    if by_site:
        tests = _sites(cohort, slides, folds)
        sites, roles = list(tests), [_with_test(everything, test) for test in tests.values()]
    elif given:
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
    refuse_absent(subjects, roles, own_split=by_site or bool(given) or len(own) > 0)
    return _table(subjects, roles, sites)


def given_splits(cohort: Cohort, path: Path, folds: int, kind: TaskKind) -> Splits:
    """The splits in a file, which must agree with the manifest; slides without a role in a fold are not used in it.

    folds: 1, or as many as the file has
    """
    splits = Splits.load(path)
    table = splits.table
    if folds not in (1, splits.n_folds):
        fail(path, f"there are {splits.n_folds} folds, not {folds}", "leave the number of folds out")
    names = {slide.slide: slide.patient for slide in cohort.slides}
    if unknown := sorted(set(table["slide"]) - set(names)):
        fail(
            path,
            f"slides are not in {cohort.path} ({listed(unknown)})",
            "remove them, or give the manifest they are of",
        )
    others = table.loc[table["patient"] != table["slide"].map(names), "slide"].unique().tolist()
    if others:
        fail(path, f"patients are not those of {cohort.path} ({listed(others)})", "correct the column 'patient'")
    if table.duplicated(["fold", "slide"]).any():
        twice = table.loc[table.duplicated(["fold", "slide"]), "slide"].tolist()
        fail(path, f"slides have two roles in a fold ({listed(twice)})", "give each slide one role in a fold")
    subjects, _ = subjects_of(cohort, kind)
    roles = table.pivot(index="slide", columns="fold", values="role").reindex(subjects.names)
    refuse_absent(subjects, [roles[fold].to_numpy(dtype=object) for fold in roles], own_split=True)
    return splits


def inner_splits(cohort: Cohort, splits: Splits, fold: int, count: int, seed: int, kind: TaskKind) -> Splits:
    """Divide the slides of a fold outside its test set into `count` inner folds with validation sets.

    This is the inner loop of nested cross-validation: it never uses test slides of the outer fold.
    """
    known = set(splits.slides(fold, "train")) | set(splits.slides(fold, "val"))
    part = replace(cohort, slides=tuple(slide for slide in cohort.slides if slide.slide in known))
    subjects, slides = subjects_of(part, kind)
    refuse_rare(replace(subjects, where=f"{cohort.path}, inner folds of fold {fold}"), count)
    everything = np.arange(len(slides))
    held_out = stratified_folds(subjects, everything, count, seed)
    return _table(subjects, [np.where(np.isin(everything, val), "val", "train") for val in held_out])


def subjects_of(cohort: Cohort, kind: TaskKind) -> tuple[Subjects, list[Slide]]:
    """The slides of a cohort sorted by name, as arrays and as a list."""
    slides = sorted(cohort.slides, key=lambda slide: slide.slide)
    outcomes = outcomes_of(cohort, [Unit.of_slide(slide) for slide in slides], kind)
    subjects = Subjects(
        str(cohort.path),
        np.array([slide.slide for slide in slides], dtype=object),
        np.array([slide.patient for slide in slides], dtype=object),
        outcomes.strata,
        outcomes.stratum_names,
        outcomes.needed,
    )
    return subjects, slides


def _table(subjects: Subjects, roles: Sequence[NDArray[Any]], sites: Sequence[str] = ()) -> Splits:
    """sites: the site that each fold tests, if there is one."""
    tables = [
        pd.DataFrame({"slide": subjects.names, "patient": subjects.patients, "fold": fold, "role": part})
        for fold, part in enumerate(roles)
    ]
    if sites:
        tables = [part.assign(**{TEST_SITE: site}) for part, site in zip(tables, sites, strict=True)]
    return Splits(pd.concat(tables, ignore_index=True))


def _with_test(everything: NDArray[np.int64], test: NDArray[np.int64]) -> NDArray[Any]:
    return np.where(np.isin(everything, test), "test", "train").astype(object)


def _sites(cohort: Cohort, slides: Sequence[Slide], folds: int) -> dict[str, NDArray[np.int64]]:
    """The slides of every site, sorted by site name."""
    if without := [slide.slide for slide in slides if slide.site is None]:
        what = f"{len(without)} slides have no site ({listed(without)})"
        fail(cohort.path, what, "fill column 'site', or leave out --leave-one-site-out")
    sites = np.array([slide.site for slide in slides], dtype=object)
    names = sorted(set(sites))
    if len(names) < 2:
        fail(cohort.path, f"all slides come from site '{names[0]}'", "leaving one site out needs at least two sites")
    if folds not in (1, len(names)):
        fail(cohort.path, f"there are {len(names)} sites, not {folds}", "leave --folds out: each site is one fold")
    of_patient: dict[str, set[str]] = {}
    for slide, site in zip(slides, sites, strict=True):
        of_patient.setdefault(slide.patient, set()).add(site)
    for patient, several in of_patient.items():
        if len(several) > 1:
            what = f"patient '{patient}' has slides from the sites {listed(sorted(several))}"
            fail(cohort.path, what, "give each patient one site, so that no patient is in training and test")
    return {name: np.flatnonzero(sites == name) for name in names}


def _refuse_request(cohort: Cohort, folds: int, val_share: float, test_share: float) -> None:
    own_folds = {slide.fold for slide in cohort.slides if slide.fold is not None}
    if not cohort.slides:
        fail(cohort.path, "there are no slides to split", "fix the manifest")
    if folds < 1:
        fail(cohort.path, f"the number of folds is {folds}", "give 1 (one split) or more")
    for name, share in (("val_share", val_share), ("test_share", test_share)):
        if not 0 <= share < 1:
            fail(cohort.path, f"{name} is {share}", "give a share of at least 0 and less than 1")
    if own_folds and folds not in (1, len(own_folds)):
        what = f"the manifest's column 'fold' defines {len(own_folds)} folds, not {folds}"
        fail(cohort.path, what, "remove the column or use its number of folds")
