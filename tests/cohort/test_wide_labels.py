"""Multi-label tables with one column per label."""

import numpy as np
import pandas as pd
import pytest

from asmil.cohort.check import check_cohort
from asmil.cohort.manifest import load_cohort
from asmil.cohort.manifest_import import import_manifest
from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.table import label_names, unknown_labels
from asmil.cohort.units import units_of
from asmil.errors import AsmilError
from asmil.tables.columns import parse_mapping
from feature_writers import make_slides

COLUMNS = {"labels": "ER,PR,HER2"}


@pytest.fixture
def wide(tmp_path):
    """Twelve slides with three labels in three codes, some of them unknown, and the manifest of the rest."""
    slides = make_slides(tmp_path, 12)
    return pd.DataFrame(
        {
            "slide": [one.slide for one in slides],
            "patient": [one.patient for one in slides],
            "ER": ["1", "0", "1", ""] * 3,
            "PR": ["Positive", "negative", "[Not Evaluated]", "negative"] * 3,
            "HER2": ["+", "-", "+", "Equivocal"] * 3,
        }
    )


def write(tmp_path, table):
    path = tmp_path / "cohort.csv"
    table.to_csv(path, index=False)
    return path


def test_labels_is_a_list_in_a_plain_mapping():
    assert parse_mapping("labels=ER, PR,HER2") == {"labels": "ER,PR,HER2"}
    assert parse_mapping("patient=p,labels=ER,PR,slide=s") == {"patient": "p", "labels": "ER,PR", "slide": "s"}
    for wrong in ("labels", "labels=", "label=a,b", "label=a,labels=b"):
        with pytest.raises(AsmilError, match="--columns"):
            parse_mapping(wrong)


def test_columns_of_zero_and_one_become_labels(tmp_path, wide):
    cohort = load_cohort(write(tmp_path, wide), kind="multilabel", columns=COLUMNS)
    labels = [(label_names(slide.label), unknown_labels(slide.label)) for slide in cohort.slides[:4]]
    expected = [({"ER", "PR", "HER2"}, set()), (set(), set()), ({"ER", "HER2"}, {"PR"}), (set(), {"ER", "HER2"})]
    assert labels == expected
    outcomes = outcomes_of(cohort, units_of(cohort.slides, "slide"), "multilabel")
    assert outcomes.names == ("ER", "HER2", "PR")
    wanted = np.array([[1, 1, 1], [0, 0, 0], [1, 1, np.nan], [np.nan, np.nan, 0]] * 3)
    assert np.array_equal(outcomes.targets, wanted, equal_nan=True)
    (counts,) = [note for note in cohort.notes if "'HER2'" in note]
    assert all(part in counts for part in ("3 unknown", "Equivocal", "6 with", "3 without"))
    report = check_cohort(cohort.path, kind="multilabel", columns=COLUMNS)
    assert report.ok
    assert report.summary.classes == {"ER": 6, "HER2": 6, "PR": 3}
    path = write(tmp_path, wide.assign(ER=["0", "1"] * 6))
    complete = load_cohort(path, kind="multilabel", columns={"labels": "ER"})
    assert outcomes_of(complete, units_of(complete.slides, "slide"), "multilabel").targets.dtype == np.int64


def test_import_manifest_joins_the_columns(tmp_path, wide, asmil_here):
    path, out = write(tmp_path, wide.assign(AGE=50)), tmp_path / "new.csv"
    done = asmil_here("import-manifest", path, "--columns", "labels=ER,PR,HER2", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "--task multilabel" in done.stdout
    here, there = (
        load_cohort(path, kind="multilabel", columns=COLUMNS),
        load_cohort(out, kind="multilabel"),
    )
    assert [slide.label for slide in here] == [slide.label for slide in there]
    assert list(pd.read_csv(out)["AGE"]) == [50] * 12
    nothing = wide.assign(ER="1", PR="0", HER2="0")
    nothing.loc[2, ["ER", "PR", "HER2"]] = ["", "NA", "unknown"]
    nothing.loc[3:5, ["ER", "PR", "HER2"]] = ["0", "1", "1"]
    assert import_manifest(write(tmp_path, nothing), columns=COLUMNS, drop_missing=True).dropped == ("s02",)
    with pytest.raises(AsmilError, match=r"s02"):
        load_cohort(path, kind="multilabel", columns=COLUMNS)


@pytest.mark.parametrize("values", [("0", "1"), ("yes", "no"), ("Positive", "Negative"), ("1.0", "0.0")])
def test_one_column_of_zero_and_one_is_no_multi_label_table(tmp_path, wide, values):
    path = write(tmp_path, wide.assign(label=list(values) * 6))
    with pytest.raises(AsmilError, match=r"'label'.*--columns labels="):
        load_cohort(path, kind="multilabel")
    with pytest.raises(AsmilError, match=r"'HER2'.*labels=HER2"):
        load_cohort(path, kind="multilabel", columns={"label": "HER2"})
    assert load_cohort(path).classes == tuple(sorted(values))
    assert len(load_cohort(path, kind="multilabel", columns={"labels": "label"})) == 12


def test_what_is_neither_yes_nor_no_is_refused(tmp_path, wide):
    path = write(tmp_path, wide.assign(PR=["2", "1", "0"] * 4))
    for read in (
        lambda: load_cohort(path, kind="multilabel", columns=COLUMNS),
        lambda: import_manifest(path, None, COLUMNS),
    ):
        with pytest.raises(AsmilError, match=r"4 slides.*'PR' is '2'"):
            read()
    for values, named in ((["1"] * 12, "PR"), (["0", ""] * 6, "PR")):
        path = write(tmp_path, wide.assign(PR=values))
        with pytest.raises(AsmilError, match=rf"label '{named}'"):
            load_cohort(path, kind="multilabel", columns=COLUMNS)
    with pytest.raises(AsmilError, match="multilabel"):
        load_cohort(path, columns=COLUMNS)
    with pytest.raises(AsmilError, match=r"HER3.*HER2"):
        load_cohort(path, kind="multilabel", columns={"labels": "ER,HER3"})
    with pytest.raises(AsmilError, match=r"HER3.*HER2"):
        import_manifest(path, None, {"labels": "ER,HER3"})
