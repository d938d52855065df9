"""How to read a comparison, in sentences: they stand in every output."""

from __future__ import annotations

from collections.abc import Iterator

from asmil.evaluation.comparison.findings import Comparison

VALUE_IS = "mean over seeds"
INTERVAL_IS = "middle 95 % of draws of patients"
DIFFERENCE_IS = "difference of the means over seeds"
DIFFERENCE_INTERVAL_IS = "middle 95 % of draws of seeds (for each run) and patients (the same for both)"
ENSEMBLE_IS = "probabilities averaged over seeds"
BOLD_IS_NO_TEST = "Bold marks the best value of a column; it is no test."


def notes_of(found: Comparison) -> list[str]:
    """What every number is and how seeds, folds and patients enter it."""
    return [*_general(found), *found.warnings]


def _general(found: Comparison) -> Iterator[str]:
    if found.role == "val":
        yield "These are validation slides: where they chose the epoch, all numbers here are optimistic."
    titles = " and ".join(measure.title for measure in found.measures)
    folds = _folds(found)
    yield (
        f"Scores: {titles}{folds}, averaged over seeds. The interval is the middle 95 % of {found.resamples} draws of "
        "patients, each with all its slides; sd is the standard deviation over seeds, or over folds where there is "
        "one seed."
    )
    yield (
        "Differences: run minus reference, of the means over seeds. Their interval answers whether the procedure is "
        f"better on new patients: in each of {found.resamples} draws seeds are drawn for each run on its own and "
        "patients once for both, with replacement. This is how seeds are combined by default; an interval that does "
        "not hold 0 speaks for a difference. Intervals are not adjusted for many comparisons."
    )
    if found.skipped:
        yield f"{found.skipped} of {found.resamples} draws of patients had no value (a single class) and were left out."
    if found.kind == "classification":
        yield from _tests(found)
    if found.n_folds > 1:
        yield (
            "p over folds is that of the corrected resampled t-test (Nadeau and Bengio) of the folds' differences, "
            "each a mean over seeds; it allows for training sets that overlap. It is not adjusted for many comparisons."
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
        "DeLong's test of every class against the rest, Holm over the classes, of which the smallest p stands here"
        if classes
        else "DeLong's test"
    )
    yield (
        "p answers whether the ensemble of the seeds is better: probabilities are averaged over the seeds of a run, "
        f"then tested once: macro-AUC by {delong}, macro-F1 by a permutation test in which the calls of a patient are "
        "swapped together."
    )
    yield (
        f"p (Holm) is adjusted over the family of all {found.family} p-values of this comparison (pairs x measures)."
    )
    if any(one.per_seed is not None for one in found.differences):
        yield (
            "The p-values of single seeds are in the JSON and CSV files; they share their slides, so they are combined "
            "by twice their median, which is valid under any dependence, and never averaged, multiplied or pooled."
        )
