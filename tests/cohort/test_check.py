import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil.cohort.check import check_cohort
from asmil.cohort.features import Provenance, write_features
from asmil.cohort.label_spelling import near_labels
from asmil.cohort.manifest import load_cohort
from feature_writers import grid, make_slides, tiles, write_clam, write_manifest, write_stamp, write_tensor


def test_a_sound_cohort_has_a_summary_and_no_problems(tmp_path):
    slides = make_slides(tmp_path, 12)
    write_features(slides[0].source.path, tiles(0, 30), grid(30), Provenance(encoder="uni"))
    report = check_cohort(write_manifest(tmp_path, slides), folds=2)
    assert report.ok
    assert report.problems == ()
    summary = report.summary
    assert (summary.slides, summary.patients, summary.classes) == (12, 12, {"0": 6, "1": 6})
    assert (summary.tiles_min, summary.tiles_median, summary.tiles_max) == (12, 12, 30)
    assert (summary.width, summary.encoder) == (6, "uni")
    assert summary.bytes_on_disk == sum(slide.source.path.stat().st_size for slide in slides)


def test_every_problem_is_collected(tmp_path):
    slides = make_slides(tmp_path, 14)
    paths = [slide.source.path for slide in slides]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:1000])
    broken = tiles()
    broken[0, 0] = np.inf
    write_clam(paths[2], broken, grid())
    paths[3].write_bytes(paths[4].read_bytes())
    write_features(paths[5], tiles(5), grid(), Provenance(encoder="conch"))
    with h5py.File(paths[6], "w") as file:
        file["features"] = np.empty((0,), np.float32)
    manifest = write_manifest(tmp_path, slides, patient=["p"] * 2 + [f"p{n}" for n in range(2, 14)])
    table = pd.read_csv(manifest, dtype=str).assign(split=["train"] * 8 + ["val"] * 2 + ["test"] * 4)
    table.loc[[7, 13], "patient"] = "both"
    table.loc[8, "label"] = ""
    table.to_csv(manifest, index=False)
    report = check_cohort(manifest)
    text = "\n".join(map(str, report.problems))
    for part in (
        "slide 's00': ",
        "s01.h5: ",
        "s02: 1 of 12 tiles",
        "'s03', 's04' ",
        "2 encoders: uni",
        "slide s06",
        "patient 'both'",
        "slide 's08': the label",
    ):
        assert part in text
    assert len(report.errors) == 8
    assert not report.ok


def test_problems_of_the_split_are_found(tmp_path):
    slides = make_slides(tmp_path, 6)
    report = check_cohort(write_manifest(tmp_path, slides), folds=5)
    assert ["5 folds" in problem.what for problem in report.errors] == [True, True]


def test_bad_folds_are_one_problem_and_no_crash(tmp_path):
    slides = make_slides(tmp_path, 6)
    report = check_cohort(write_manifest(tmp_path, slides, fold=["0", "0", "0", "1", "1", "x"]))
    assert "'x'" in report.errors[0].what


def test_unreadable_manifest_is_a_report_too(tmp_path):
    report = check_cohort(tmp_path / "none.csv")
    assert report.summary is None
    assert "does not exist" in report.errors[0].what


@pytest.mark.parametrize(("deep", "found"), [(True, True), (False, False)])
def test_only_a_deep_check_reads_every_tile(tmp_path, deep, found):
    slides = make_slides(tmp_path, 12)
    values = tiles(5, 100)
    values[1] = np.nan
    write_clam(slides[5].source.path, values, grid(100))
    report = check_cohort(write_manifest(tmp_path, slides), deep=deep)
    assert any("NaN" in str(problem) for problem in report.problems) == found


def test_coordinates_that_cannot_be_placed_are_warnings(tmp_path):
    slides = make_slides(tmp_path, 12)
    for number, slide in enumerate(slides):
        write_stamp(slide.source.path, tiles(number), grid(side=256).astype(np.float32))
    slides[3].source.path.unlink()
    write_tensor(slides[3].source.path.with_suffix(".pt"), torch.from_numpy(tiles(3)))
    report = check_cohort(write_manifest(tmp_path, slides))
    assert report.ok
    assert [problem.severity for problem in report.problems] == ["warning", "warning"]
    assert "no coordinates ('s03')" in report.problems[0].what
    assert "'mpp'" in report.problems[1].todo


def test_an_altered_value_is_an_error_of_its_slide(tmp_path):
    slides = make_slides(tmp_path, 8)
    with h5py.File(slides[2].source.path, "a") as file:
        file["features"][3, 1] += 0.25
    manifest = write_manifest(tmp_path, slides)
    assert any("s02.h5" in str(problem) for problem in check_cohort(manifest).errors)


@pytest.mark.parametrize("column", ["split", "fold"])
@pytest.mark.parametrize("wrong", ["nothing", "features", "label column", "a rare class", "an empty label"])
def test_leaks_are_reported_whatever_else_is_wrong(tmp_path, column, wrong):
    slides = make_slides(tmp_path, 12)
    slides[5].source.path.write_bytes(slides[4].source.path.read_bytes())
    manifest = write_manifest(tmp_path, slides)
    roles = ["train"] * 8 + ["val"] * 2 + ["test"] * 2 if column == "split" else [0, 0, 1, 1] * 3
    table = pd.read_csv(manifest, dtype=str).assign(**{column: roles})
    table.loc[[1, 10], "patient"] = "both"
    if wrong == "features":
        for slide in (slides[1], slides[10]):
            slide.source.path.unlink()
    elif wrong == "label column":
        table = table.drop(columns="label")
    elif wrong == "a rare class":
        table.loc[11, "label"] = "rare"
    elif wrong == "an empty label":
        table.loc[[1, 3], "label"] = ""
    table.to_csv(manifest, index=False)
    report = check_cohort(manifest)
    text = "\n".join(map(str, report.errors))
    assert "'both'" in text
    assert "'s01'" in text
    assert "'s10'" in text
    assert "'s04', 's05'" in text
    assert (len(report.errors) > 2) == (wrong != "nothing")


def test_a_split_that_folds_replace_does_not_leak(tmp_path):
    slides = make_slides(tmp_path, 12)
    roles = ["train", "test"] + ["train"] * 6 + ["val", "val", "test", "test"]
    manifest = write_manifest(tmp_path, slides, split=roles, patient=["p", "p", *(f"p{n}" for n in range(10))])
    assert ["'p'" in problem.what for problem in check_cohort(manifest).errors] == [True]
    assert check_cohort(manifest, folds=2).ok


def test_a_table_without_features_is_summarized_by_its_rows(tmp_path, asmil_here):
    path = tmp_path / "clam.csv"
    rows = [{"case_id": f"p{n // 2}", "slide_id": f"s{n}", "label": "ab"[n // 2 % 2]} for n in range(12)]
    pd.DataFrame(rows).to_csv(path, index=False)
    summary = check_cohort(path).summary
    assert (summary.slides, summary.patients, summary.readable) == (12, 6, 0)
    assert summary.classes == {"a": 6, "b": 6}
    assert summary.tiles_median is None
    done = asmil_here("check", path)
    assert done.returncode == 1
    assert "12 slides of 6 patients" in done.stdout
    assert "median" not in done.stdout
    assert " 0 " not in done.stdout


@pytest.mark.parametrize(
    ("rare", "frequent"),
    [("tumour", "tumor"), ("nrmal", "normal"), ("fibre", "fiber"), ("papilary carcinoma", "papillary carcinoma")],
)
def test_labels_that_differ_by_a_letter_are_asked_about(tmp_path, rare, frequent):
    slides = make_slides(tmp_path, 12)
    manifest = write_manifest(tmp_path, slides, label=[rare] * 3 + [frequent] * 5 + ["other"] * 4)
    report = check_cohort(manifest)
    assert report.ok
    (problem,) = report.problems
    assert all(word in problem.what for word in (f"'{rare}'", f"'{frequent}'", "3 slides", "5 slides"))
    # and training says so, too
    assert any(f"'{rare}'" in note for note in load_cohort(manifest).notes)
    several = pd.read_csv(manifest, dtype=str).replace({"label": {rare: f"{rare};other"}})
    several.to_csv(manifest, index=False)
    assert [rare in problem.what for problem in check_cohort(manifest, kind="multilabel").problems] == [True]


@pytest.mark.parametrize(
    "names",
    [
        ("grade1", "grade2", "grade3"),
        ("T1", "T2"),
        ("ER+", "ER-"),
        ("luad", "lusc"),
        ("0", "1"),
        ("Stage I", "Stage II", "Stage III"),
        ("gradei", "gradeii", "gradeiii"),
        ("typeA", "typeB"),
        ("groupa", "groupb"),
        ("micro", "macro", "itc", "negative"),
        ("typical", "atypical"),
        ("ventral", "central"),
        ("positive", "negative"),
        ("lobular", "tubular"),
        tuple(f"class {n}" for n in range(9)),
    ],
)
def test_classes_that_differ_on_purpose_are_not_asked_about(names):
    assert near_labels(dict.fromkeys(names, 5)) == []
