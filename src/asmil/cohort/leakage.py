"""Detect leakage that makes results too good: a patient on both sides of a split, or duplicate slides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

from asmil.cohort.fingerprint import content_hash, fingerprint
from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.patient_names import patient_name_problems
from asmil.cohort.problems import Problem, listed, raise_errors
from asmil.cohort.splits import Splits
from asmil.cohort.tile_hashes import copies, tile_sketch


def refuse_leakage(cohort: Cohort, splits: Splits, tiles: bool = True) -> None:
    """Raise if a patient has two roles in a fold, or if two slides have the same file or the same features.

    tiles: also compare slides tile by tile, see `duplicate_problems`
    """
    problems = [*patient_problems(cohort, splits), *patient_name_problems(cohort, splits)]
    raise_errors([*problems, *duplicate_problems(cohort.slides, tiles)])


def patient_problems(cohort: Cohort, splits: Splits) -> list[Problem]:
    """Patients with two roles in one fold."""
    problems = []
    several = splits.table.groupby(["fold", "patient"])["role"].transform("nunique") > 1
    for (fold, patient), rows in splits.table[several].groupby(["fold", "patient"], sort=True):
        parts = [f"{role} ({listed(list(slides))})" for role, slides in rows.groupby("role")["slide"]]
        what = f"patient '{patient}' is in {' and in '.join(parts)} of fold {fold}"
        problems.append(Problem("error", str(cohort.path), what, "give all slides of a patient the same role"))
    return problems


def duplicate_problems(slides: Sequence[Slide], tiles: bool = True) -> list[Problem]:
    """Slides that are the same file, or whose files hold the same features.

    tiles: also slides that share most of their tiles, in any order; every file is read, unless `inspect_slides` did so.
        Between slides of one patient, which always have the same role, this is only a warning.
    """
    problems = []
    # slides of a pack share a path, which is slow to resolve
    resolved = cache(Path.resolve)
    files = _groups(slides, lambda slide: (resolved(slide.source.path), slide.source.group))
    for same in files:
        if len(same) > 1:
            what = f"slides {listed([slide.slide for slide in same])} have the same feature file"
            todo = "give every slide its own file, or keep one slide"
            problems.append(Problem("error", str(same[0].source), what, todo))
    firsts = [same[0] for same in files]
    equal: set[frozenset[str]] = set()
    for alike in _groups(firsts, lambda slide: fingerprint(slide.source)):
        for same in _groups(alike, lambda slide: content_hash(slide.source)) if len(alike) > 1 else ():
            if len(same) > 1:
                equal |= {frozenset((a.slide, b.slide)) for a, b in combinations(same, 2)}
                names = listed([slide.slide for slide in same])
                where = listed([slide.source for slide in same])
                what = f"slides {names} have the same features (files {where})"
                todo = "keep one of them, or extract the right slide again"
                problems.append(Problem("error", f"slide '{same[0].slide}'", what, todo))
    return [*problems, *(_near_copies(firsts, equal) if tiles else ())]


def _near_copies(slides: Sequence[Slide], equal: set[frozenset[str]]) -> Iterator[Problem]:
    """Slides that share most of their tiles; equal: pairs that are reported already."""
    sketches = [tile_sketch(slide.source) for slide in slides]
    for i, j in copies(sketches, [slide.patient for slide in slides]):
        a, b = slides[i], slides[j]
        if frozenset((a.slide, b.slide)) in equal:
            continue
        what = f"slides '{a.slide}' and '{b.slide}' share most of their tiles (files '{a.source}' and '{b.source}')"
        if a.patient == b.patient:
            todo = f"keep one of them, unless patient '{a.patient}' really has both"
            yield Problem("warning", f"slide '{a.slide}'", what, todo)
        else:
            todo = f"they are one slide: keep one of them, or give '{a.patient}' and '{b.patient}' the same patient"
            yield Problem("error", f"slide '{a.slide}'", what, todo)


def _groups(slides: Iterable[Slide], key: Callable[[Slide], Hashable]) -> list[list[Slide]]:
    groups: dict[Hashable, list[Slide]] = defaultdict(list)
    for slide in slides:
        groups[key(slide)].append(slide)
    return list(groups.values())
