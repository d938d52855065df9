"""The sentences of a comparison: what its numbers are, and what to be careful about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from asmil.cohort.splits import Splits
from asmil.errors import AsmilError
from asmil.evaluation.comparison.findings import Comparison, Difference
from asmil.evaluation.comparison.paired_predictions import ComparedRun, PairedPredictions, Rows
from asmil.training.layout import RunLayout

VALUE_IS = "mean over seeds"
INTERVAL_IS = "middle 95 % of draws of patients"
DIFFERENCE_IS = "difference of the means over seeds"
DIFFERENCE_INTERVAL_IS = "middle 95 % of draws of seeds (for each run) and patients (the same for both)"
ENSEMBLE_IS = "probabilities averaged over seeds"
BOLD_IS_NO_TEST = "Bold marks the best value of a column; it does not test it."


def reading_of(found: Comparison) -> Iterator[str]:
    """What every number is and how seeds, folds and patients enter it."""
    titles = " and ".join(metric.title for metric in found.metrics)
    folds = _folds(found)
    yield (
        f"Values: {titles}{folds}, averaged over seeds. The interval holds the middle 95 % of {found.resamples} draws "
        "of patients, each with all its slides; sd is the standard deviation over seeds, or over folds if there is "
        "one seed."
    )
    yield (
        "Differences: run minus reference, of the means over seeds. Their interval answers whether the procedure is "
        f"better on new patients: in each of {found.resamples} draws, seeds are drawn for each run separately and "
        "patients once for both, with replacement. An interval that excludes 0 is evidence of a difference. Intervals "
        "are not adjusted for multiple comparisons."
    )
    if any(one.ensemble is not None for one in found.differences):
        yield from _tests(found)
    if found.n_folds > 1:
        yield (
            "p over folds is that of the corrected resampled t-test (Nadeau and Bengio) of the folds' differences, "
            "each a mean over seeds; it allows for training sets that overlap. It is not adjusted for multiple "
            "comparisons."
        )


def _folds(found: Comparison) -> str:
    if found.n_folds == 1:
        return f" on the {found.role} part"
    if found.folds_joined:
        return f", the {found.role} parts of the {found.n_folds} folds of a seed joined"
    return f", the mean over the {found.role} parts of {found.n_folds} folds"


def _tests(found: Comparison) -> Iterator[str]:
    classes = any(one.ensemble is not None and "per class" in one.ensemble.test for one in found.differences)
    delong = (
        "DeLong's test of every class against the rest, Holm over the classes, of which the smallest p is shown"
        if classes
        else "DeLong's test"
    )
    yield (
        "p answers whether the ensemble of the seeds is better: probabilities are averaged over the seeds of a run, "
        f"then tested once: macro-AUC by {delong}, macro-F1 by a permutation test in which the predicted classes of a "
        "patient are swapped together."
    )
    yield (f"p (Holm) is adjusted over the family of all {found.family} p-values of this comparison (pairs x metrics).")
    if any(one.per_seed is not None for one in found.differences):
        yield (
            "The p-values of single seeds are in the JSON and CSV files; they share their slides, so they are combined "
            "by twice their median, which is valid under any dependence, and never averaged, multiplied or pooled."
        )


def cautions_of(paired: PairedPredictions, differences: Sequence[Difference]) -> Iterator[str]:
    """What a reader of this comparison must be warned of, one sentence each."""
    rows, runs = paired.rows, list(paired.runs.values())
    yield from _absent_classes(rows)
    yield from _undefined_parts(paired)
    yield from _several_slides(rows)
    yield from _single_seeds(runs)
    yield from _other_training_parts(runs)
    yield from _missing_tests(differences)


def _absent_classes(rows: Rows) -> Iterator[str]:
    if rows.task.part_name != "class":
        return
    absent = [name for label, name in enumerate(rows.task.names) if label not in rows.truth]
    if absent:
        total = len(rows.task.names)
        yield (
            f"No slide is of class {', '.join(absent)}: macro-AUC is the mean of {total - len(absent)} of {total} "
            "classes, and macro-F1 counts the absent ones as 0."
        )


def _undefined_parts(paired: PairedPredictions) -> Iterator[str]:
    folds = paired.rows.folds
    for metric in paired.metrics:
        judged = np.concatenate([folds[part] for part in paired.parts[metric.name]])
        left_out = sorted(set(folds.tolist()) - set(judged.tolist()))
        if left_out:
            named = ", ".join(map(str, left_out))
            yield f"{metric.title} is undefined in fold {named}, which is left out of its mean."


def _several_slides(rows: Rows) -> Iterator[str]:
    slides = dict(zip(rows.slides, rows.patients, strict=True))
    most = max(Counter(slides.values()).values())
    delong = any(metric.paired_test == "delong" for metric in rows.task.compared)
    if most > 1 and delong:
        yield (
            f"Patients have up to {most} slides: bootstrap and permutation draw and swap whole patients, but DeLong's "
            "test treats slides as independent, so its p is too small; `--unit patient` gives one prediction per "
            "patient."
        )


def _single_seeds(runs: Sequence[ComparedRun]) -> Iterator[str]:
    single = [run.name for run in runs if len(run.seeds) == 1]
    if single:
        yield (
            f"{', '.join(single)}: with one seed the interval of a difference ignores the noise of training; it "
            "compares these trained models, not the methods."
        )


def _other_training_parts(runs: Sequence[ComparedRun]) -> Iterator[str]:
    first = _training_part(runs[0])
    for run in runs[1:]:
        found = _training_part(run)
        if first is not None and found is not None and found != first:
            fold, slide = sorted(first ^ found)[0]
            yield (
                f"{run.name} and {runs[0].name} were not trained on the same slides (e.g. {slide} in fold "
                f"{fold}): the difference is also one of training data."
            )


def _training_part(run: ComparedRun) -> frozenset[tuple[int, str]] | None:
    try:
        table = Splits.load(RunLayout(run.run.path).splits).table
    except AsmilError:
        return None
    chosen = table[table["role"] == "train"]
    return frozenset(zip(chosen["fold"].tolist(), chosen["slide"].astype(str), strict=True))


def _missing_tests(differences: Sequence[Difference]) -> Iterator[str]:
    for found in differences:
        what = f"{found.run} compared with {found.reference}, {found.metric.title}"
        if found.ensemble is not None and found.ensemble.reason:
            yield f"{what}: {found.ensemble.test} left something out ({found.ensemble.reason})."
        if found.folds is not None and found.folds.reason:
            yield f"{what}: there is no t-test over folds ({found.folds.reason})."
