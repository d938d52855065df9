"""The inner folds of nested cross-validation: only what an outer fold does not test."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.cohort.splits import inner_splits, make_splits
from asmil.errors import AsmilError
from made_up_cohorts import cohort_of, lived


@settings(max_examples=10)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(0, 9), st.integers(1, 3), st.sampled_from([0.0, 0.15]))
def test_inner_folds_share_out_what_is_not_tested(folds, count, seed, slides_each, val_share):
    cohort = cohort_of(lived(40, 20), slides_each)
    splits = make_splits(cohort, folds, seed, val_share, kind="survival")
    for fold in range(folds):
        inner = inner_splits(cohort, splits, fold, count, seed, "survival")
        known = set(splits.slides(fold, "train")) | set(splits.slides(fold, "val"))
        assert set(inner.table["slide"]) == known
        assert set(inner.table["role"]) == {"train", "val"}
        held_out = [name for number in range(count) for name in inner.slides(number, "val")]
        assert sorted(held_out) == sorted(known)
        for number in range(count):
            parts = [{cohort[name].patient for name in inner.slides(number, role)} for role in ("train", "val")]
            assert not parts[0] & parts[1]
            assert any(cohort[name].event for name in inner.slides(number, "val"))


def test_the_seed_decides_and_the_outcomes_of_test_patients_do_not():
    rows = [{"label": "ab"[i % 2], "split": "test" if i < 10 else "train"} for i in range(40)]
    other = [{**row, "label": "b" if row["split"] == "test" else row["label"]} for row in rows]
    tables = []
    for patients in (rows, other):
        cohort = cohort_of(patients)
        splits = make_splits(cohort, val_share=0.0)
        tables.append(inner_splits(cohort, splits, 0, 3, 0, "classification").table)
        again = inner_splits(cohort, splits, 0, 3, 1, "classification").table
        assert not tables[-1].equals(again)
    assert tables[0].equals(tables[1])


def test_more_inner_folds_than_patients_of_a_class_are_refused():
    cohort = cohort_of([{"label": "ab"[i % 2]} for i in range(12)])
    splits = make_splits(cohort, 2)
    with pytest.raises(AsmilError, match=r"fold 1: .*'a'.*3 patients.*4 folds"):
        inner_splits(cohort, splits, 1, 4, 0, "classification")
