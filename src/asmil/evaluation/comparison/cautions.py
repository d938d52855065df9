"""What a reader of one particular comparison must be warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.evaluation.comparison.findings import Difference
from asmil.evaluation.comparison.pairing import Entrant, Rows
from asmil.evaluation.comparison.resampling import Arena
from asmil.training.layout import RunLayout


def cautions_of(arena: Arena, differences: Sequence[Difference]) -> Iterator[str]:
    """One sentence a caution."""
    rows, entrants = arena.rows, list(arena.entrants.values())
    yield from _absent_classes(rows)
    yield from _undefined_parts(arena)
    yield from _several_slides(rows)
    yield from _single_seeds(entrants)
    yield from _other_training_parts(entrants)
    yield from _tests_that_are_not_there(differences)


def _absent_classes(rows: Rows) -> Iterator[str]:
    if rows.kind != "classification":
        return
    absent = [name for label, name in enumerate(rows.classes) if label not in rows.truth]
    if absent:
        total = len(rows.classes)
        yield (
            f"No slide is of class {', '.join(absent)}: macro-AUC is the mean of {total - len(absent)} of {total} "
            "classes, and macro-F1 counts the absent ones as 0."
        )


def _undefined_parts(arena: Arena) -> Iterator[str]:
    folds = arena.rows.folds
    for measure in arena.measures:
        judged = np.concatenate([folds[part] for part in arena.parts[measure.name]])
        left_out = sorted(set(folds.tolist()) - set(judged.tolist()))
        if left_out:
            told = ", ".join(map(str, left_out))
            yield f"{measure.title} is undefined in fold {told}, which is left out of its mean."


def _several_slides(rows: Rows) -> Iterator[str]:
    slides = dict(zip(rows.slides, rows.patients, strict=True))
    most = max(Counter(slides.values()).values())
    if most > 1 and rows.kind == "classification":
        yield (
            f"Patients have up to {most} slides: bootstrap and permutation draw and swap whole patients, but DeLong's "
            "test takes slides as independent and is too sure; --unit patient makes one prediction a patient."
        )


def _single_seeds(entrants: Sequence[Entrant]) -> Iterator[str]:
    single = [entrant.name for entrant in entrants if len(entrant.seeds) == 1]
    if single:
        yield (
            f"{', '.join(single)}: with one seed the noise of training is not in the interval of a difference, which "
            "is then of these trained models, not of the methods."
        )


def _other_training_parts(entrants: Sequence[Entrant]) -> Iterator[str]:
    first = _training_part(entrants[0])
    for entrant in entrants[1:]:
        found = _training_part(entrant)
        if first is not None and found is not None and found != first:
            fold, slide = sorted(first ^ found)[0]
            yield (
                f"{entrant.name} and {entrants[0].name} were not trained on the same slides (e.g. {slide} in fold "
                f"{fold}): the difference is also one of training data."
            )


def _training_part(entrant: Entrant) -> frozenset[tuple[int, str]] | None:
    try:
        table = Splits.load(RunLayout(entrant.run.path).splits).table
    except AsmilError:
        return None
    chosen = table[table["role"] == "train"]
    return frozenset(zip(chosen["fold"].tolist(), chosen["slide"].astype(str), strict=True))


def _tests_that_are_not_there(differences: Sequence[Difference]) -> Iterator[str]:
    for found in differences:
        what = f"{found.run} against {found.reference}, {found.measure.title}"
        if found.ensemble is not None and found.ensemble.reason:
            yield f"{what}: {found.ensemble.test} left something out ({found.ensemble.reason})."
        if found.folds is not None and found.folds.reason:
            yield f"{what}: there is no t-test over folds ({found.folds.reason})."
