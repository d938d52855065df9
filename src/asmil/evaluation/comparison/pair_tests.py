"""Tests of two classification runs: of their seed ensembles, of every pair of seeds, and over folds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from asmil.cohort.splits import Splits
from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.comparison.findings import ClassAuc, EnsembleTest, FoldTest, SeedTests
from asmil.evaluation.comparison.paired_predictions import Rows
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.statistics import CombinationRule, combine_p, corrected_resampled_t, delong, holm, permutation_f1
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.metrics import macro_auc, macro_f1, predicted_classes
from asmil.training.layout import RunLayout

SEED_RULE: CombinationRule = "twice_median"


def auc_test(rows: Rows, prediction: Floats, reference: Floats) -> EnsembleTest:
    """DeLong's test of two n x K probabilities: of the second class for K = 2, else of every class, with Holm.

    For K > 2 the p of the pair is the smallest Holm-adjusted one: it tests whether any class's AUC differs.
    """
    (joined, ours), (_, theirs) = rows.by_slide(prediction), rows.by_slide(reference)
    labels = [1] if len(rows.task.names) == 2 else range(len(rows.task.names))
    found, reasons = [], []
    for label in labels:
        try:
            test = delong((joined.truth == label).astype(np.intp), ours[:, label], theirs[:, label])
        except AsmilError as error:
            reasons.append(f"class {rows.task.names[label]}: {error}")
            continue
        name = rows.task.names[label]
        found.append(
            ClassAuc(name, test.auc_a, test.auc_b, test.difference, test.interval, test.z, test.p, p_holm=math.nan)
        )
    adjusted = holm([one.p for one in found])
    classes = tuple(replace(one, p_holm=float(p)) for one, p in zip(found, adjusted, strict=True))
    return EnsembleTest(
        test="DeLong" if len(rows.task.names) == 2 else "DeLong per class, Holm over classes",
        value=macro_auc(joined.truth, ours),
        value_reference=macro_auc(joined.truth, theirs),
        p=min((one.p_holm for one in classes), default=math.nan),
        classes=classes,
        reason="; ".join(reasons),
    )


def f1_test(rows: Rows, prediction: Floats, reference: Floats, seed: int) -> EnsembleTest:
    """The permutation test of macro-F1: the calls of a patient's slides are swapped together."""
    (joined, ours), (_, theirs) = rows.by_slide(prediction), rows.by_slide(reference)
    n_classes = len(rows.task.names)
    called = [predicted_classes(part) for part in (ours, theirs)]
    test = permutation_f1(joined.truth, called[0], called[1], n_classes, joined.patients.tolist(), seed=seed)
    values = [macro_f1(joined.truth, part, n_classes) for part in called]
    how = "exact" if test.exact else f"{test.patterns} random patterns"
    return EnsembleTest(f"permutation by patient, {how}", values[0], values[1], test.p)


def seed_tests(seeds: Sequence[int], seeds_reference: Sequence[int], p: Sequence[float]) -> SeedTests | None:
    """The p-values of the pairs of seeds, in order of the seeds, with one for all.

    None for a single pair, which says nothing new, and where one is undefined.
    """
    if len(p) < 2 or any(math.isnan(one) for one in p):
        return None
    pairs = tuple(zip(seeds, seeds_reference, strict=False))
    return SeedTests(pairs, tuple(p), SEED_RULE, combine_p(p, SEED_RULE))


def fold_test(differences: Sequence[float], sizes: tuple[float, float] | str) -> FoldTest:
    """The corrected resampled t of the folds' differences; sizes: of both parts, or why they are unknown."""
    n_train, n_test = (math.nan, math.nan) if isinstance(sizes, str) else sizes
    reason = sizes if isinstance(sizes, str) else ""
    if not reason and any(math.isnan(one) for one in differences):
        reason = "the metric is undefined in a fold"
    if not reason:
        try:
            test = corrected_resampled_t(differences, n_train, n_test)
        except AsmilError as error:
            reason = str(error)
        else:
            return FoldTest(tuple(differences), n_train, n_test, test.t, test.df, test.p)
    return FoldTest(tuple(differences), n_train, n_test, math.nan, len(differences) - 1, math.nan, reason)


def part_sizes(run: Path, role: Role, unit: UnitKind) -> tuple[float, float]:
    """Mean sizes over folds of the training part and of the evaluated part, from `splits.csv`."""
    file = RunLayout(run).splits
    table = Splits.load(file).table.drop_duplicates([unit, "fold", "role"])
    counts = table.groupby(["fold", "role"]).size().unstack(fill_value=0).reindex(columns=["train", role], fill_value=0)
    if (counts == 0).any(axis=None):
        raise AsmilError(f"{file}: a fold has no slides to train on or to evaluate; check the splits")
    return float(counts["train"].mean()), float(counts[role].mean())
