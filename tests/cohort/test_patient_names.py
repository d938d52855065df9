"""Patients that are one patient under two names."""

from dataclasses import replace

import pytest

from asmil import AsmilError
from asmil.cohort.check import check_cohort
from asmil.cohort.leakage import refuse_leakage
from asmil.cohort.manifest import Cohort
from asmil.cohort.patient_names import patient_name_problems
from asmil.cohort.splits import make_splits
from feature_writers import make_slides, write_manifest

ROLES = ["train"] * 4 + ["val"] * 2 + ["test"] * 4


def cohort_of(tmp_path, **patients):
    """Ten slides in three parts; patients: those of some slides."""
    slides = make_slides(tmp_path, 10)
    slides = [
        replace(slide, patient=patients.get(slide.slide, slide.patient), split=role)
        for slide, role in zip(slides, ROLES, strict=True)
    ]
    return Cohort(tmp_path / "cohort.csv", tuple(slides)), write_manifest(tmp_path, slides, split=ROLES)


def test_samples_of_one_tcga_patient_on_both_sides_are_refused(tmp_path):
    cohort, manifest = cohort_of(tmp_path, s00="TCGA-05-4244-01A", s07="TCGA-05-4244-11A")
    with pytest.raises(AsmilError, match=r"TCGA-05-4244-01A.*TCGA-05-4244-11A"):
        refuse_leakage(cohort, make_splits(cohort))
    (error,) = check_cohort(manifest).errors
    assert "patient=tcga-barcode" in str(error)


def test_samples_in_one_part_are_a_warning(tmp_path):
    cohort, manifest = cohort_of(tmp_path, s00="TCGA-05-4244-01A", s01="TCGA-05-4244-11A", s07="TCGA-05-4249-01A")
    refuse_leakage(cohort, make_splits(cohort))
    report = check_cohort(manifest)
    assert report.ok
    assert any("TCGA-05-4244-11A" in str(problem) for problem in report.problems)


def test_a_single_sample_of_each_patient_is_a_warning_and_patients_are_fine(tmp_path):
    cohort, _ = cohort_of(tmp_path, s00="TCGA-05-4244-01A", s07="TCGA-05-4249-01A")
    assert [one.severity for one in patient_name_problems(cohort, make_splits(cohort))] == ["warning"]
    cohort, _ = cohort_of(tmp_path, s00="TCGA-05-4244", s01="TCGA-05-4244", s07="TCGA-05-4249")
    assert patient_name_problems(cohort, make_splits(cohort)) == []


@pytest.mark.parametrize(("one", "other"), [("Q1", "Q01"), ("A-7/2", "A-007/2"), ("12", "0012")])
def test_names_that_differ_in_zeros_are_asked_about(tmp_path, one, other):
    cohort, manifest = cohort_of(tmp_path, s00=one, s07=other)
    refuse_leakage(cohort, make_splits(cohort))
    report = check_cohort(manifest)
    assert report.ok
    (problem,) = report.problems
    assert problem.severity == "warning"
    assert f"'{one}'" in str(problem)
    assert f"'{other}'" in str(problem)


def test_other_numbers_are_other_patients(tmp_path):
    cohort, _ = cohort_of(tmp_path, s00="P1", s01="P10", s02="P100", s03="P0", s04="1.5", s05="15")
    assert patient_name_problems(cohort, make_splits(cohort)) == []


@pytest.mark.parametrize(("one", "other"), [("q1", "Q1"), ("Q 1", "Q\u00a01"), ("Q 1", "Q  1")])
def test_spellings_of_one_name_stay_an_error(tmp_path, one, other):
    _, manifest = cohort_of(tmp_path, s00=one, s07=other)
    assert not check_cohort(manifest).ok


def test_train_tells_the_doubts_of_check(tmp_path, asmil_here):
    _, manifest = cohort_of(tmp_path, s00="Q1", s07="Q01")
    done = asmil_here("train", manifest, "-m", "abmil", "--set", "training.epochs=1", "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "'Q01'" in done.stderr
