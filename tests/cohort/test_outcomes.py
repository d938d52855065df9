"""From the cells of a manifest to targets and strata, for every task."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from asmil.cohort.check import check_cohort
from asmil.cohort.manifest import load_cohort
from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.table import label_names
from asmil.cohort.units import units_of
from asmil.errors import AsmilError
from feature_writers import make_slides
from made_up_cohorts import cohort_of, lived


def outcomes(patients, kind, unit="slide", slides_each=1):
    cohort = cohort_of(patients, slides_each)
    return outcomes_of(cohort, units_of(cohort.slides, unit), kind)


def test_classes_are_places_in_their_names():
    found = outcomes([{"label": name} for name in "bab"], "classification")
    assert found.names == ("a", "b")
    assert found.targets.tolist() == [1, 0, 1]
    assert found.strata.tolist() == [1, 0, 1]
    assert found.needed == (0, 1)


def test_times_and_events_of_patients():
    found = outcomes(lived(4, 2), "survival", "patient", slides_each=3)
    assert found.names == ()
    assert found.targets.tolist() == [[3, 1], [10, 1], [17, 0], [24, 0]]
    assert found.strata.tolist() == [1, 1, 0, 0]
    assert found.needed == (1,)


def test_values_are_in_quarters_of_their_ranks():
    found = outcomes([{"label": str(value)} for value in (5, 1, 1e3, -2, 7, 0.5, 1, 2)], "regression")
    assert found.targets.tolist() == [5, 1, 1000, -2, 7, 0.5, 1, 2]
    assert found.strata.tolist() == [2, 1, 3, 0, 3, 0, 1, 2]
    assert len(found.stratum_names) == 4


def test_labels_are_a_matrix_and_rare_ones_make_no_stratum():
    cells = ["a;b"] * 3 + ["b"] * 12 + ["a"] * 9 + ["none"] * 4 + ["c; a"]
    found = outcomes([{"label": cell} for cell in cells], "multilabel")
    assert found.names == ("a", "b", "c")
    assert found.targets.sum(axis=0).tolist() == [13, 15, 1]
    assert found.targets[-1].tolist() == [1, 0, 1]
    assert found.stratum_names == ("a", "b", "without a frequent label")
    assert np.bincount(found.strata).tolist() == [13, 12, 4]
    assert found.needed == ()


def test_groups_of_a_part_follow_from_the_part_alone():
    values = outcomes([{"label": str(value)} for value in range(16)], "regression")
    assert values.among([0, 1, 2, 3]).strata.tolist() == [0, 1, 2, 3]
    assert values.among([0, 1, 2, 3]).targets.tolist() == [0, 1, 2, 3]
    labels = outcomes([{"label": cell} for cell in ["a"] * 12 + ["b"] * 20], "multilabel")
    assert labels.among(range(5, 32)).stratum_names == ("b", "without a frequent label")
    assert labels.among(range(5, 32)).names == ("a", "b")
    events = outcomes(lived(6, 3), "survival")
    assert events.among([5, 0]).strata.tolist() == [0, 1]


def test_label_names():
    assert label_names(" a ;b;") == {"a", "b"}
    assert label_names("none") == set()


@pytest.mark.parametrize(
    ("patients", "kind", "message"),
    [
        ([{"label": "a"}] * 3, "classification", r"class \('a'\)"),
        (lived(5, 0), "survival", "event"),
        ([{"label": "2.0"}, {"label": "2"}], "regression", "values are 2"),
        ([{"label": "none"}] * 3, "multilabel", "label"),
    ],
)
def test_outcomes_that_teach_nothing_are_refused(patients, kind, message):
    with pytest.raises(AsmilError, match=rf"cohort.csv: .*{message}"):
        outcomes(patients, kind)


@pytest.mark.parametrize(
    ("kind", "cells", "column"),
    [
        ("classification", ("a", "b"), "label"),
        ("regression", ("1", "2"), "label"),
        ("multilabel", ("a;b", "a"), "label"),
        ("survival", (4.0, 5.0), "time or event"),
    ],
)
def test_slides_of_a_patient_that_differ_are_refused_only_where_they_are_joined(kind, cells, column):
    name = "time" if kind == "survival" else "label"
    cohort = cohort_of([{name: cell, "event": True} for cell in (*cells, *cells)])
    alike = [type(slide)(**{**vars(slide), "patient": f"p{i % 2}"}) for i, slide in enumerate(cohort.slides)]
    outcomes_of(cohort, units_of(alike, "patient"), kind)
    other = [type(slide)(**{**vars(slide), "patient": f"p{i // 2}"}) for i, slide in enumerate(cohort.slides)]
    outcomes_of(cohort, units_of(other, "slide"), kind)
    with pytest.raises(AsmilError, match="'p0'"):
        outcomes_of(cohort, units_of(other, "patient"), kind)


@pytest.mark.parametrize(("kind", "cells"), [("multilabel", ("a;b", "b; a")), ("regression", ("1", "1.0"))])
def test_the_same_outcome_may_be_written_in_two_ways(kind, cells):
    cohort = cohort_of([{"label": cell} for cell in (*cells, "3")])
    slides = [type(slide)(**{**vars(slide), "patient": f"p{i // 2}"}) for i, slide in enumerate(cohort.slides)]
    assert len(outcomes_of(cohort, units_of(slides, "patient"), kind).targets) == 2


# Through files


@pytest.fixture
def write_manifest(tmp_path):
    slides = make_slides(tmp_path, 12)

    def write(**columns):
        table = pd.DataFrame({"slide": [slide.slide for slide in slides], **columns})
        table["features"] = [str(slide.source.path) for slide in slides]
        table.to_csv(tmp_path / "cohort.csv", index=False)
        return tmp_path / "cohort.csv"

    return write


TIMES, EVENTS = [*map(float, range(1, 13))], [1, 0] * 6


def test_a_survival_manifest_is_read(write_manifest):
    cohort = load_cohort(
        write_manifest(time=TIMES, event=["1", "0.0", "TRUE", "false", "1.0", "0"] * 2), kind="survival"
    )
    assert [slide.time for slide in cohort] == TIMES
    assert [slide.event for slide in cohort] == [True, False] * 6
    assert check_cohort(cohort.path, kind="survival").ok


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("time", "-1", "time '-1'"),
        ("time", "nan", "time 'nan'"),
        ("time", "inf", "time 'inf'"),
        ("time", "", "time is empty"),
        ("time", "5 months", "time '5 months'"),
        ("event", "", "event is empty"),
        ("event", "yes", "event 'yes'"),
        ("event", "2", "event '2'"),
    ],
)
def test_a_wrong_cell_of_a_survival_manifest_is_named_with_its_slide(write_manifest, column, cell, message):
    columns = {"time": list(map(str, TIMES)), "event": list(map(str, EVENTS))}
    columns[column][3] = cell
    manifest = write_manifest(**columns)
    name = pd.read_csv(manifest)["slide"][3]
    with pytest.raises(AsmilError, match=f"slide '{name}': .*{message}"):
        load_cohort(manifest, kind="survival")
    load_cohort(manifest, kind=None)
    told = [str(problem) for problem in check_cohort(manifest, kind="survival").errors]
    assert len(told) == 1
    assert message in told[0]


def test_a_value_that_is_no_number_is_named_with_its_slide(write_manifest):
    manifest = write_manifest(label=["1.5"] * 5 + ["high"] + ["2"] * 6)
    with pytest.raises(AsmilError, match="'high'"):
        load_cohort(manifest, kind="regression")
    load_cohort(manifest, kind="classification")


def test_missing_columns_are_named(write_manifest):
    manifest = write_manifest(label=["a", "b"] * 6)
    with pytest.raises(AsmilError, match="'time'"):
        load_cohort(manifest, kind="survival")


def test_check_finds_patients_whose_slides_differ(write_manifest):
    manifest = write_manifest(patient=[f"p{i // 2}" for i in range(12)], time=TIMES, event=EVENTS)
    told = [str(problem) for problem in check_cohort(manifest, kind="survival").errors]
    assert len(told) == 6
    assert all("time or event" in line for line in told)
    assert check_cohort(write_manifest(patient=[f"p{i // 2}" for i in range(12)], label=TIMES), kind="regression").ok


def test_check_counts_events_and_labels(write_manifest):
    assert check_cohort(write_manifest(time=TIMES, event=EVENTS), kind="survival").summary.classes == {
        "with an event": 6,
        "censored": 6,
    }
    labels = check_cohort(write_manifest(label=["a;b", "b", "none"] * 4), kind="multilabel").summary.classes
    assert labels == {"a": 4, "b": 8}
    assert check_cohort(write_manifest(label=TIMES), kind="regression").summary.classes == {}


def test_times_without_labels_suggest_the_task(tmp_path):
    manifest = tmp_path / "cohort.csv"
    manifest.write_text("slide,patient,time,event\ns1,p1,3,1\n")
    with pytest.raises(AsmilError, match=r"label.*--task survival"):
        load_cohort(manifest)
