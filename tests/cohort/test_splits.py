import random
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.cohort.features import FeatureSource, Provenance, write_features
from asmil.cohort.fingerprint import SAMPLED_ROWS
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.manifest import Cohort, Slide
from asmil.cohort.splits import Splits, given_splits, make_splits
from asmil.errors import AsmilError
from feature_writers import grid, make_slides, tiles, write_clam


def cohort_of(patients, **columns):
    """A cohort of patients, each a list of the labels of its slides; no files behind it."""
    slides = []
    for number, labels in enumerate(patients):
        for place, label in enumerate(labels):
            name = f"p{number:03d}-{place}"
            own = {key: values[number] for key, values in columns.items()}
            slides.append(Slide(name, f"p{number:03d}", label, FeatureSource(Path(f"{name}.h5")), **own))
    return Cohort(Path("cohort.csv"), tuple(slides))


@st.composite
def cohorts(draw, least=6):
    """Two or three classes, each of enough patients of one to four slides."""
    patients = []
    for label in "abc"[: draw(st.integers(2, 3))]:
        sizes = draw(st.lists(st.integers(1, 4), min_size=least, max_size=14))
        patients += [[label] * size for size in sizes]
    random.Random(draw(st.integers(0, 99))).shuffle(patients)
    return cohort_of(patients)


def patients(cohort, names):
    return {cohort[name].patient for name in names}


@settings(deadline=None, max_examples=40)
@given(cohorts(), st.integers(1, 4), st.integers(0, 3))
def test_generated_splits_are_whole_grouped_and_hold_every_class(cohort, folds, seed):
    splits = make_splits(cohort, folds, seed)
    tested = Counter()
    for fold in range(splits.n_folds):
        parts = {role: splits.slides(fold, role) for role in ("train", "val", "test")}
        assert sorted(chain(*parts.values())) == sorted(slide.slide for slide in cohort)
        owners = [patients(cohort, names) for names in parts.values()]
        assert sum(map(len, owners)) == len(set.union(*owners))
        for names in parts.values():
            assert {cohort[name].label for name in names} == set(cohort.classes)
        tested.update(parts["test"])
    assert splits.n_folds == folds
    if folds > 1:
        assert set(tested.values()) == {1}
        assert len(tested) == len(cohort)


@settings(deadline=None, max_examples=40)
@given(cohorts(), st.integers(2, 6), st.integers(0, 3))
def test_folds_differ_by_at_most_one_patient_of_a_class(cohort, folds, seed):
    splits = make_splits(cohort, folds, seed)
    for label in cohort.classes:
        of_class = {slide.slide for slide in cohort if slide.label == label}
        counts = [len(patients(cohort, of_class & set(splits.slides(fold, "test")))) for fold in range(folds)]
        assert max(counts) - min(counts) <= 1


def test_patients_with_slides_of_two_classes_are_dealt_out_by_the_rarer_one():
    cohort = cohort_of([["a", "b"]] * 4 + [["a"]] * 20 + [["b", "a", "a"]] * 4)
    splits = make_splits(cohort, folds=4)
    for fold in range(4):
        mixed = [name for name in splits.slides(fold, "test") if cohort[name].label == "b"]
        assert len(mixed) == 2


@settings(deadline=None, max_examples=25)
@given(cohorts(), st.integers(1, 3), st.integers(0, 3), st.randoms(use_true_random=False))
def test_row_order_does_not_matter_and_the_seed_does(cohort, folds, seed, shuffler):
    rows = list(cohort.slides)
    shuffler.shuffle(rows)
    again = make_splits(Cohort(cohort.path, tuple(rows)), folds, seed)
    assert again.table.equals(make_splits(cohort, folds, seed).table)


def test_another_seed_gives_another_split():
    cohort = cohort_of([["a"], ["b"]] * 30)
    assert make_splits(cohort, seed=0).slides(0, "test") != make_splits(cohort, seed=1).slides(0, "test")


@pytest.mark.parametrize(("val_share", "test_share"), [(0.15, 0.25), (0.1, 0.3), (0.5, 0.5), (0.0, 0.2), (0.2, 0.0)])
def test_shares_and_strata_are_met(val_share, test_share):
    cohort = cohort_of([["a"], ["a"], ["a"], ["b"]] * 50)
    splits = make_splits(cohort, val_share=val_share, test_share=test_share)
    parts = {role: splits.slides(0, role) for role in ("train", "val", "test")}
    assert len(parts["test"]) == pytest.approx(200 * test_share, abs=6)
    assert len(parts["val"]) == pytest.approx(200 * (1 - test_share) * val_share, abs=6)
    for names in filter(None, parts.values()):
        share = sum(cohort[name].label == "b" for name in names) / len(names)
        assert share == pytest.approx(0.25, abs=0.05)


def test_splits_survive_saving(tmp_path):
    cohort = cohort_of([["0"], ["1"]] * 10)
    splits = make_splits(cohort, folds=3)
    splits.save(tmp_path / "splits.csv")
    loaded = Splits.load(tmp_path / "splits.csv")
    assert loaded.n_folds == 3
    for fold in range(3):
        assert loaded.slides(fold, "val") == splits.slides(fold, "val")
    with pytest.raises(AsmilError, match="does not exist"):
        Splits.load(tmp_path / "none.csv")
    (tmp_path / "bad.csv").write_text("slide,patient,fold,role\na,a,0,training\n")
    with pytest.raises(AsmilError, match="'training'"):
        Splits.load(tmp_path / "bad.csv")


@pytest.mark.parametrize(
    "text",
    [
        *("", "slide,patient,fold,role\n", "slide,fold,role\na,0,test\n", "slide,patient,fold,role\na,a,0,test,x\n"),
        *(
            f"slide,patient,fold,role\na,a,{fold},test\n"
            for fold in ("9" * 30, "9" * 5000, "1", "\u0663", "-1", "x", "")
        ),
    ],
)
def test_damaged_splits_name_their_file(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    with pytest.raises(AsmilError, match=r"bad\.csv"):
        Splits.load(tmp_path / "bad.csv")


def test_the_manifests_split_is_used_as_it_is():
    given_roles = ["train", "train", "train", "train", "val", "val", "test", "test"]
    cohort = cohort_of([["a"], ["b"]] * 4, split=given_roles)
    splits = make_splits(cohort)
    assert splits.slides(0, "test") == ["p006-0", "p007-0"]
    assert splits.slides(0, "val") == ["p004-0", "p005-0"]


def test_folds_that_are_asked_for_set_the_manifests_split_aside():
    cohort = cohort_of([["a"], ["b"]] * 4, split=["train"] * 6 + ["test"] * 2)
    splits = make_splits(cohort, folds=2)
    tested = splits.slides(0, "test") + splits.slides(1, "test")
    assert sorted(tested) == sorted(slide.slide for slide in cohort.slides)


def test_validation_is_taken_from_training_where_the_manifest_has_none():
    cohort = cohort_of([["a"], ["b"]] * 20, split=["train"] * 30 + ["test"] * 10)
    splits = make_splits(cohort)
    assert len(splits.slides(0, "test")) == 10
    assert 3 <= len(splits.slides(0, "val")) <= 6
    untested = make_splits(cohort_of([["a"], ["b"]] * 20, split=["train"] * 40))
    assert untested.slides(0, "test") == []
    assert untested.slides(0, "val")


def test_the_manifests_folds_are_its_test_sets():
    cohort = cohort_of([["a"], ["b"]] * 12, fold=[number // 2 % 3 for number in range(24)])
    splits = make_splits(cohort)
    assert splits.n_folds == 3
    for fold in range(3):
        assert {cohort[name].fold for name in splits.slides(fold, "test")} == {fold}
        assert fold not in {cohort[name].fold for name in splits.slides(fold, "val")}
        assert splits.slides(fold, "val")
    with pytest.raises(AsmilError, match="3 folds, not 4"):
        make_splits(cohort, folds=4)


@pytest.mark.parametrize(
    ("patients", "options", "message"),
    [
        ([["a"]] * 20, {}, r"class \('a'\)"),
        ([["a"]] * 20 + [["rare"]] * 3, {"folds": 5}, "'rare' has 3.*5 folds"),
        ([["a"]] * 20 + [["rare", "rare"]], {}, "'rare'.*1 patient"),
        ([["a"]] * 20 + [["rare"]] * 2, {}, "'rare'.*1 patient"),
        ([["a"], ["b"]] * 5, {"val_share": 1.0}, "val_share .*1.0"),
        ([["a"], ["b"]] * 5, {"folds": 0}, "folds .*0"),
    ],
)
def test_impossible_splits_say_why(patients, options, message):
    with pytest.raises(AsmilError, match=message):
        make_splits(cohort_of(patients), **options)


def test_a_class_that_is_only_tested_is_an_error():
    cohort = cohort_of([["a"], ["b"]] * 4 + [["c"]], split=["train"] * 6 + ["val", "val", "test"])
    with pytest.raises(AsmilError, match=r"fold 0 .*'c'"):
        make_splits(cohort)
    nothing = cohort_of([["a"], ["b"]], split=["test", "test"])
    with pytest.raises(AsmilError, match="no train slide"):
        make_splits(nothing)


def cohort_on_disk(folder, slides):
    return Cohort(folder / "cohort.csv", tuple(slides))


def test_a_sound_cohort_has_no_leakage(tmp_path):
    cohort = cohort_on_disk(tmp_path, make_slides(tmp_path, 12))
    refuse_leakage(cohort, make_splits(cohort, folds=2))


def test_a_patient_in_two_roles_is_refused(tmp_path):
    slides = make_slides(tmp_path, 6)
    roles = ["train", "train", "val", "val", "test", "test"]
    slides = [
        Slide(s.slide, "same" if n in (0, 4) else s.patient, s.label, s.source, split=role)
        for n, (s, role) in enumerate(zip(slides, roles, strict=True))
    ]
    cohort = cohort_on_disk(tmp_path, slides)
    with pytest.raises(AsmilError, match=r"'same'.*\('s04'\).*\('s00'\).*0"):
        refuse_leakage(cohort, make_splits(cohort))


def test_the_same_file_under_two_names_is_refused(tmp_path):
    slides = make_slides(tmp_path, 12)
    slides[3] = Slide("s03", "p03", "1", FeatureSource(tmp_path / "features" / ".." / "features" / "s01.h5"))
    cohort = cohort_on_disk(tmp_path, slides)
    with pytest.raises(AsmilError, match=r"s01.h5: .*'s01', 's03'"):
        refuse_leakage(cohort, make_splits(cohort))


@pytest.mark.parametrize("patient", ["p01", "p03"])
def test_the_same_content_in_two_files_is_refused_whoever_the_patient(tmp_path, patient):
    slides = make_slides(tmp_path, 12)
    write_clam(tmp_path / "features" / "s03.h5", tiles(1), grid())
    slides[3] = Slide("s03", patient, "1", slides[3].source)
    cohort = cohort_on_disk(tmp_path, slides)
    with pytest.raises(AsmilError, match=r"'s01', 's03'.*s01.h5.*s03.h5"):
        refuse_leakage(cohort, make_splits(cohort))


def test_equal_fingerprints_of_different_content_are_no_leak(tmp_path):
    slides = make_slides(tmp_path, 12, tiles_each=1000)
    values = tiles(1, 1000) + 1
    sampled = np.linspace(0, 999, SAMPLED_ROWS).astype(int)
    values[sampled] = tiles(1, 1000)[sampled]
    write_features(tmp_path / "features" / "s03.h5", values, grid(1000), Provenance())
    cohort = cohort_on_disk(tmp_path, slides)
    refuse_leakage(cohort, make_splits(cohort))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [("a,a,0,train", ",a,0,train", "slide"), ("a,a,0,train", "a,a,0,val", "fold 0")],
    ids=["a row without a slide", "a fold without training slides"],
)
def test_a_table_that_cannot_be_trained_on_is_refused_by_name(tmp_path, old, new, named):
    path = tmp_path / "splits.csv"
    text = "slide,patient,fold,role\na,a,0,train\nb,b,0,test\n"
    path.write_text(text)
    assert Splits.load(path).slides(0, "train") == ["a"]
    path.write_text(text.replace(old, new))
    with pytest.raises(AsmilError) as caught:
        Splits.load(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_every_kind_of_space_of_a_table_is_a_blank(tmp_path):
    path = tmp_path / "splits.csv"
    path.write_text("slide,patient,fold\u00a0,role\na\u00a0b,p,0,train\u200b\nc,q,0,test\n", encoding="utf-8")
    assert Splits.load(path).slides(0, "train") == ["a b"]


def test_splits_in_a_file_are_taken_as_they_are_if_they_agree_with_the_manifest(tmp_path):
    """Tests of two folds may overlap, and a slide may have no role in a fold."""
    cohort, path = cohort_of([["a"], ["b"], ["a"], ["b"], ["a", "a"]]), tmp_path / "splits.csv"
    roles = [("p000-0", 0, "train"), ("p001-0", 0, "train"), ("p002-0", 0, "test"), ("p003-0", 0, "test")]
    roles += [("p000-0", 1, "train"), ("p001-0", 1, "train"), ("p002-0", 1, "test"), ("p004-1", 1, "val")]

    def written(rows):
        path.write_text("\n".join(["slide,patient,fold,role", *(f"{s},{s[:4]},{f},{r}" for s, f, r in rows)]))
        return given_splits(cohort, path, 1, "classification")

    splits = written(roles)
    assert [splits.slides(fold, "test") for fold in range(2)] == [["p002-0", "p003-0"], ["p002-0"]]
    for wrong, named in (
        ([*roles, ("p009-0", 0, "train")], "p009-0"),
        ([*roles, ("p000-0", 0, "test")], "p000-0"),
        ([row for row in roles if row[0] != "p001-0"], "class"),
    ):
        with pytest.raises(AsmilError, match=named):
            written(wrong)
    written(roles)
    path.write_text(path.read_text().replace("p000-0,p000", "p000-0,p001"))
    with pytest.raises(AsmilError, match="patient"):
        given_splits(cohort, path, 1, "classification")
    with pytest.raises(AsmilError, match="folds"):
        given_splits(cohort, path, 3, "classification")
