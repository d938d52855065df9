"""Whose the slides are: a manifest that says so in any way is not split as if every slide were a patient."""

import pytest

from asmil.cohort.check import check_cohort
from asmil.cohort.manifest import load_cohort, read_manifest
from asmil.cohort.splits import make_splits
from asmil.errors import AsmilError
from feature_writers import make_slides

TCGA = "TCGA-3C-AA{:02d}-01Z-00-DX{}"


def clam_cohort(tmp_path, header, rename=lambda slide: slide, case="case_{}"):
    """24 slides of 14 patients, as CLAM lists them."""
    slides = make_slides(tmp_path, 24)
    rows = [f"{case.format(n % 14)},{rename(slide.slide)},{'ab'[n % 14 % 2]}" for n, slide in enumerate(slides)]
    path = tmp_path / "cohort.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize("header", ["case_id,slide_id,label", "case_id,slide,label", "PATIENT,FILENAME,label"])
def test_the_slides_of_a_case_stay_together(tmp_path, header):
    path = clam_cohort(tmp_path, header, rename=lambda slide: f"{slide}.h5" if "FILENAME" in header else slide)
    cohort = load_cohort(path)
    assert len({slide.patient for slide in cohort}) == 14
    table = make_splits(cohort, folds=3).table
    assert table.groupby(["fold", "patient"])["role"].nunique().max() == 1
    report = check_cohort(path)
    assert report.ok
    assert report.summary.patients == 14


@pytest.mark.parametrize("column", ["case_nr", "TCGA Patient", "id", "subjectKey", "study_donor", "pid"])
def test_a_column_that_looks_like_the_patient_stops_check_and_training(tmp_path, column):
    path = clam_cohort(tmp_path, f"{column},slide,label")
    with pytest.raises(AsmilError, match=column):
        load_cohort(path)
    assert any(column in problem.what for problem in check_cohort(path, deep=False).errors)
    assert not any(column in problem.what for problem in read_manifest(path, kind=None)[1])


def test_slides_may_be_said_to_be_independent(tmp_path):
    path = clam_cohort(tmp_path, "case_nr,slide,label")
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header + ",patient", *(f"{row},{row.split(',')[1]}" for row in rows)]))
    assert len({slide.patient for slide in load_cohort(path)}) == 24


@pytest.mark.parametrize(
    ("column", "value"),
    [("patient_age", "{}"), ("case_type", "{}"), ("scanner", "{}"), ("patient", ""), ("id", ""), ("case_nr", "one")],
)
def test_properties_of_patients_and_empty_columns_stop_nothing(tmp_path, column, value):
    assert len(load_cohort(clam_cohort(tmp_path, f"{column},slide,label", case=value))) == 24


def test_barcodes_of_tcga_name_patients(tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    for n in range(4):
        (folder / f"{TCGA.format(n // 2, n % 2)}.h5").touch()
    names = sorted(path.stem for path in folder.iterdir())
    path = tmp_path / "cohort.csv"
    path.write_text("slide,label\n" + "".join(f"{name},{n % 2}\n" for n, name in enumerate(names)))
    with pytest.raises(AsmilError, match="TCGA-3C-AA00"):
        load_cohort(path)
    path.write_text("slide,patient,label\n" + "".join(f"{name},{name[:12]},0\n" for name in names))
    assert len({slide.patient for slide in load_cohort(path)}) == 2
    path.write_text("slide,label\n" + "".join(f"{name},0\n" for name in names[::2]))
    assert len(load_cohort(path)) == 2
