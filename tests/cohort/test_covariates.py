"""Covariates: read from the manifest, kinds from the values, encoded by training patients alone."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asmil import AsmilError
from asmil.cohort.covariates import Covariate, CovariateEncoder, parse_covariates, with_kinds
from asmil.cohort.manifest import Slide, load_cohort
from asmil.cohort.source import FeatureSource
from asmil.cohort.units import Unit, units_of
from training.small_task_cohorts import write_cohort

AGE, SEX = Covariate("age", "number"), Covariate("sex", "category")


def rows(*pairs):
    return [{"age": age, "sex": sex} for age, sex in pairs]


def units(*cells, name="age"):
    slides = [
        Slide(f"s{i}", f"p{i}", "a", FeatureSource(Path()), covariates={name: cell}) for i, cell in enumerate(cells)
    ]
    return [Unit.of_slide(slide) for slide in slides]


def test_numbers_and_levels_by_hand():
    encoder = CovariateEncoder.fit([AGE, SEX], rows(("40", "f"), ("60", "m"), ("50", "f"), ("", "f")))
    assert encoder.labels == ("age", "age missing", "sex = f", "sex = m")
    sd = np.std([40, 60, 50])
    wanted = [[10 / sd, -0.25, -0.75, 0.75], [0, 0.75, 0.25, -0.25]]
    np.testing.assert_allclose(encoder.encode(rows(("60", "m"), ("N/A", "f"))), wanted)
    # the rows of the fit have the mean 0, apart from the imputed value, which is the median here
    np.testing.assert_allclose(
        encoder.encode(rows(("40", "f"), ("60", "m"), ("50", "f"), ("", "f"))).mean(axis=0), 0, atol=1e-12
    )


def test_what_training_did_not_have_is_reported_and_imputed():
    encoder = CovariateEncoder.fit([AGE, SEX], rows(("40", "f"), ("60", "m"), ("50", "f")))
    usual, odd = encoder.encode(rows(("50", "f"), ("", "x")))
    np.testing.assert_array_equal(usual, odd)
    doubts = encoder.doubts({"age": "5000", "sex": "x"})
    assert ["5000" in doubts[0], "'x'" in doubts[1]] == [True, True]
    assert encoder.doubts({"age": "45", "sex": "m"}) == []


def test_a_constant_number_does_not_count():
    encoder = CovariateEncoder.fit([AGE], [{"age": "50"}] * 3)
    assert encoder.encode([{"age": "90"}]).tolist() == [[0.0]]


def test_an_encoder_survives_its_file():
    encoder = CovariateEncoder.fit([AGE, SEX], rows(("40", "f"), ("", "m")))
    assert CovariateEncoder.model_validate_json(encoder.model_dump_json()) == encoder


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (("50", "61.5", "NA", "unknown"), "number"),
        (("I", "II", "III"), "category"),
        (("1", "2", "1"), "number"),
        (("male", "unknown", "female"), "category"),
        (("none", "yes"), "category"),
    ],
)
def test_values_decide_the_kind(cells, kind):
    assert with_kinds(Path("m.csv"), units(*cells), [Covariate("age")]) == (Covariate("age", kind),)


@pytest.mark.parametrize(
    ("cells", "given", "named"),
    [
        (("50", "61", "70y"), None, "70y"),
        (("", "NA"), None, "age"),
        (("Male", "male"), None, "Male"),
        (tuple(f"text {i}" for i in range(40)), None, "40"),
        (("I", "II"), "number", "I"),
        (("unknown", "unknown"), None, "unknown"),
    ],
)
def test_unusable_values_are_named(cells, given, named):
    with pytest.raises(AsmilError, match=named) as error:
        with_kinds(Path("m.csv"), units(*cells), [Covariate("age", given)])
    assert "m.csv" in str(error.value)


def test_slides_of_a_patient_must_agree():
    slides = tuple(Slide(f"s{age}", "p", "a", FeatureSource(Path()), covariates={"age": age}) for age in ("50", "51"))
    with pytest.raises(AsmilError, match="'p'"):
        with_kinds(Path("m.csv"), [Unit("p", "p", slides)], [AGE])


def test_names_of_covariates():
    assert parse_covariates(["age", " stage : category "]) == (Covariate("age"), Covariate("stage", "category"))
    assert parse_covariates(["a:b"]) == (Covariate("a:b"),)
    for words in (["age", "age:number"], [":number"]):
        with pytest.raises(AsmilError, match=r"age|:number"):
            parse_covariates(words)


def test_columns_of_the_manifest(tmp_path):
    manifest = write_cohort(tmp_path, "survival")
    table = pd.read_csv(manifest)
    table["Age at Diagnosis"] = np.arange(len(table)) // 2
    table["vital_status"] = "Alive"
    table.to_csv(manifest, index=False)
    cohort = load_cohort(manifest, kind="survival", covariates=["age_at_diagnosis"])
    assert cohort.slides[3].covariates == {"age_at_diagnosis": "1"}
    assert cohort.table["age_at_diagnosis"].tolist()[:3] == ["0", "0", "1"]
    assert len(units_of(cohort.slides, "patient")) == 16
    for name in ("time", "vital_status", "sex"):
        with pytest.raises(AsmilError, match=f"'{name}'") as error:
            load_cohort(manifest, kind="survival", covariates=[name])
        assert str(manifest) in str(error.value)


def test_a_column_is_not_taken_from_another_one(tmp_path):
    manifest = write_cohort(tmp_path, "classification")
    table = pd.read_csv(manifest)
    table["partner.age"], table["grade"] = 40, 2.0
    table.to_csv(manifest, index=False)
    with pytest.raises(AsmilError, match="'age'"):
        load_cohort(manifest, covariates=["age"])
    with pytest.raises(AsmilError, match="Grade"):
        load_cohort(manifest, covariates=["grade", "Grade"])
    assert load_cohort(manifest, covariates=["grade"]).slides[0].covariates == {"grade": "2"}  # pandas writes 2.0


def test_a_column_without_values_in_training_is_not_used():
    for covariate in (AGE, SEX):
        (column,) = CovariateEncoder.fit([covariate], [{covariate.name: ""}] * 2).columns
        assert "not used" in column.doubt("63")
