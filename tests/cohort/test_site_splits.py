"""Splits of every task: whole patients, even shares of outcomes, one site left out."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.cohort.splits import Splits, make_splits
from asmil.errors import AsmilError
from made_up_cohorts import cohort_of, lived

KINDS = ("classification", "survival", "regression", "multilabel")


def outcome(kind, draw):
    if kind == "survival":
        return {"time": float(draw.integers(0, 60)), "event": bool(draw.random() < 0.4)}
    if kind == "regression":
        return {"label": str(draw.normal())}
    if kind == "multilabel":
        return {"label": ";".join(name for name in "abc" if draw.random() < 0.3) or "none"}
    return {"label": "ab"[draw.integers(2)]}


def patients_of(kind, n, seed, **more):
    draw = np.random.default_rng(seed)
    cells = "aabbaabb" if kind == "classification" else "12121212"
    sure = lived(8, 8) if kind == "survival" else [{"label": cell} for cell in cells]
    everyone = sure + [outcome(kind, draw) for _ in range(n)]
    return [{**fields, **{k: v[i] for k, v in more.items()}} for i, fields in enumerate(everyone)]


def owners(cohort, names):
    return {cohort[name].patient for name in names}


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS), st.integers(8, 40), st.integers(1, 3), st.integers(1, 4), st.integers(0, 5), st.booleans()
)
def test_patients_are_never_on_both_sides(kind, n, slides_each, folds, seed, validates):
    cohort = cohort_of(patients_of(kind, n, seed), slides_each)
    splits = make_splits(cohort, folds, seed, val_share=0.15 if validates else 0.0, kind=kind)
    tested = []
    for fold in range(folds):
        parts = [splits.slides(fold, role) for role in ("train", "val", "test")]
        assert sorted(chain(*parts)) == sorted(slide.slide for slide in cohort)
        members = [owners(cohort, names) for names in parts]
        assert sum(map(len, members)) == len(set.union(*members))
        assert bool(parts[1]) == validates
        assert parts[0]
        assert parts[2]
        tested += parts[2]
    assert len(tested) == len(set(tested))
    assert folds == 1 or len(tested) == len(cohort)


@settings(max_examples=15)
@given(st.integers(6, 30), st.integers(5, 40), st.integers(2, 5), st.integers(0, 9))
def test_events_are_dealt_out_evenly(events, censored, folds, seed):
    cohort = cohort_of(lived(events + censored, events), slides_each=2)
    splits = make_splits(cohort, folds, seed, kind="survival")
    for happened in (True, False):
        counts = [
            len({cohort[name].patient for name in splits.slides(fold, "test") if cohort[name].event is happened})
            for fold in range(folds)
        ]
        assert max(counts) - min(counts) <= 1


def test_values_of_all_sizes_are_in_every_fold():
    cohort = cohort_of([{"label": str(value)} for value in np.random.default_rng(0).permutation(80)])
    splits = make_splits(cohort, 4, kind="regression")
    for fold in range(4):
        values = np.array([float(cohort[name].label) for name in splits.slides(fold, "test")])
        assert np.histogram(values, bins=[0, 20, 40, 60, 80])[0].tolist() == [5, 5, 5, 5]


def test_rare_labels_do_not_stop_a_split_and_frequent_ones_are_dealt_out():
    cohort = cohort_of([{"label": "a"}] * 12 + [{"label": "b"}] * 30 + [{"label": "rare;b"}])
    splits = make_splits(cohort, 4, kind="multilabel")
    for fold in range(4):
        labels = [cohort[name].label for name in splits.slides(fold, "test")]
        assert labels.count("a") == 3


def test_folds_and_splits_of_a_survival_manifest_are_used_as_they_are():
    folds = [i % 5 for i in range(20)]
    cohort = cohort_of([{**one, "fold": fold} for one, fold in zip(lived(20, 9), folds, strict=True)], 2)
    splits = make_splits(cohort, kind="survival", val_share=0.0)
    assert splits.n_folds == 5
    for fold in range(5):
        assert {cohort[name].fold for name in splits.slides(fold, "test")} == {fold}
        assert len(splits.slides(fold, "test")) == 8
        assert splits.slides(fold, "val") == []
    given_roles = ["train"] * 12 + ["val"] * 4 + ["test"] * 4
    cohort = cohort_of([{**one, "split": role} for one, role in zip(lived(20, 20), given_roles, strict=True)])
    assert len(make_splits(cohort, kind="survival", val_share=0.0).slides(0, "val")) == 4


def test_too_few_events_are_refused():
    with pytest.raises(AsmilError, match=r"'event'.*2 patients.*3 folds"):
        make_splits(cohort_of(lived(20, 2)), 3, kind="survival")
    cohort = cohort_of([{**one, "fold": i // 10} for i, one in enumerate(lived(20, 5))])
    with pytest.raises(AsmilError, match=r"fold 0 .*'event'"):
        make_splits(cohort, kind="survival", val_share=0.0)


# One site left out


@settings(max_examples=15)
@given(st.sampled_from(KINDS), st.integers(2, 4), st.integers(0, 9), st.integers(1, 2))
def test_every_site_is_tested_exactly_once(kind, n_sites, seed, slides_each):
    sites = [f"site-{i % n_sites}" for i in range(48)]
    cohort = cohort_of(patients_of(kind, 40, seed, site=sites), slides_each)
    splits = make_splits(cohort, seed=seed, kind=kind, by_site=True)
    assert splits.n_folds == n_sites
    for fold, site in enumerate(sorted(set(sites))):
        assert sorted(splits.slides(fold, "test")) == sorted(slide.slide for slide in cohort if slide.site == site)
        others = [cohort[name].site for role in ("train", "val") for name in splits.slides(fold, role)]
        assert site not in others
        assert splits.slides(fold, "val")
        assert not owners(cohort, splits.slides(fold, "val")) & owners(cohort, splits.slides(fold, "train"))


def test_sites_go_before_the_manifests_own_split_and_folds():
    rows = [{"label": "ab"[i % 2], "site": f"s{i // 10}", "split": "train"} for i in range(30)]
    assert make_splits(cohort_of(rows), by_site=True).n_folds == 3
    assert make_splits(cohort_of(rows), folds=3, by_site=True).n_folds == 3


def test_folds_are_named_by_their_site_and_keep_it_in_the_file(tmp_path):
    rows = [{"label": "ab"[i % 2], "site": ["Oslo", "Jena"][i // 15]} for i in range(30)]
    splits = make_splits(cohort_of(rows), by_site=True)
    splits.save(tmp_path / "splits.csv")
    loaded = Splits.load(tmp_path / "splits.csv")
    assert splits.sites == loaded.sites == {0: "Jena", 1: "Oslo"}
    assert "Oslo" in loaded.fold_names[1]
    plain = make_splits(cohort_of(rows), folds=2)
    assert plain.sites == {}
    assert "1" in plain.fold_names[1]


def sited(*sites):
    return [{"label": "ab"[i % 2], "site": site} for i, site in enumerate(sites)]


@pytest.mark.parametrize(
    ("patients", "folds", "message"),
    [
        (sited(*["a"] * 10, *["b"] * 9, None), 1, r"'p019-0'.*'site'"),
        (sited(*["a"] * 20), 1, "site 'a'"),
        (sited(*["a", "a", "b", "b"] * 5), 3, "2 sites.*--folds"),
        (sited(*["a", "b"] * 10), 1, "fold 0.*class 'a'"),
    ],
)
def test_sites_that_cannot_be_left_out_say_why(patients, folds, message):
    with pytest.raises(AsmilError, match=message):
        make_splits(cohort_of(patients), folds, by_site=True)


def test_a_patient_of_two_sites_is_refused():
    cohort = cohort_of(sited(*["a", "a", "b", "b"] * 5), slides_each=2)
    slides = list(cohort.slides)
    slides[5] = type(slides[5])(**{**vars(slides[5]), "site": "a"})
    with pytest.raises(AsmilError, match=r"'p002'.*'a'.*'b'"):
        make_splits(type(cohort)(cohort.path, tuple(slides)), by_site=True)
