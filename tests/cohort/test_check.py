import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil.cohort.check import check_cohort
from asmil.cohort.features import Provenance, write_features
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
