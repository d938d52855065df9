"""`asmil localize`, from a training to page and tables, on features with known tiles and on slides with annotations."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tifffile

from asmil.cohort.features import inspect_features
from asmil.cohort.source import FeatureSource
from asmil.evaluation.localization.localize import LocalizeSettings, localize_run
from asmil.evaluation.localization.report import localization_dict, localization_document, slide_row
from asmil.runs.config import resolve
from asmil.slides.annotations import rasterize, read_annotations, tumor_area
from asmil.training.run import train_run
from parsed_page import Page

WRITTEN = {
    "localization.html",
    "localization.md",
    "localization.json",
    "localization.csv",
    "localization_slides.csv",
}
EXTRACTION_TESTS = Path(__file__).parents[1] / "extraction"
FEW = ("--resamples", 50, "--quiet", "--device", "cpu")


def settings(epochs: int):
    return resolve("abmil", changes={"training": {"epochs": epochs}})


@pytest.fixture(scope="module")
def trained(small_cohort, tmp_path_factory) -> Path:
    """A run on a cohort of features; the truth of its tiles is known."""
    out = tmp_path_factory.mktemp("run") / "run <b>"
    train_run(small_cohort, out, settings(2))
    return out


@pytest.fixture(scope="module")
def slides(tmp_path_factory) -> Path:
    """Synthetic slides with annotations, their features, and a run on them."""
    from asmil.extraction.extract import extract, identify
    from asmil.extraction.machine import ExtractionMachine
    from asmil.extraction.settings import parse_extraction
    from asmil.extraction.worker import WorkerPlan
    from asmil.slides.discovery import find_slides
    from asmil.synthetic.slides import SyntheticSlidesConfig, write_synthetic_slides

    place = tmp_path_factory.mktemp("slides")
    config = SyntheticSlidesConfig(slides=10, mpp=1.0, side_mm_min=0.6, side_mm_max=0.7, pen=0, sites=1)
    manifest = write_synthetic_slides(place, config, workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXTRACTION_TESTS)
        encoder = "tiny_encoder:ColorMoments"
        files = find_slides(place / "slides")
        engine, readers = ExtractionMachine(workers=0).prepare(len(files), lambda text: None)
        plan = WorkerPlan(
            parse_extraction({"encoder": encoder, "tiling": {"tile_um": 64, "tile_px": 64}}),
            identify(encoder, None),
            None,
            readers=readers,
        )
        assert not [
            done.error for done in extract(files, place / "features", plan, engine, pictures=False) if done.error
        ]
    train_run(manifest, place / "run", settings(2))
    return place


def test_features_with_known_tiles(asmil_here, trained, small_cohort):
    done = asmil_here("localize", trained, "--truth", small_cohort.parent / "tile_truth.parquet", *FEW)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("release", "nms", "'attention'", "minmax", "gated"))
    folder = trained / "localization"
    assert {path.name for path in folder.iterdir()} == WRITTEN
    found = json.loads((folder / "localization.json").read_text())
    assert set(found["scalings"]) == {"minmax", "gated"}
    table = pd.read_csv(folder / "localization_slides.csv")
    manifest = pd.read_csv(small_cohort)
    assert set(table["slide"]) == set(manifest.loc[manifest["split"] == "test", "slide"])
    for scaling, part in found["scalings"].items():
        measures = part["metrics"]
        assert measures["dice"]["value"] == pytest.approx(table[f"{scaling}_dice"].mean())
        assert measures["specificity"]["value"] == pytest.approx(table[f"{scaling}_specificity"].mean())
        recall = table[f"{scaling}_regions_found"].sum() / table["regions"].sum()
        assert measures["region_recall"]["value"] == pytest.approx(recall)
    assert found["metrics"]["tile_auc"]["value"] == pytest.approx(table["tile_auc"].mean())
    assert found["highest_specificity_with_minmax"] == pytest.approx(
        (1 - 1 / table.loc[table["is_normal"], "tiles"]).mean()
    )
    rows = pd.read_csv(folder / "localization.csv")
    assert set(rows.loc[rows["metric"] == "froc", "preset"]) == {"release"}
    page = (folder / "localization.html").read_text()
    assert {"table", "figure", "details"} <= set(Page(page).tags)
    assert "run &lt;b&gt;" in page
    assert "run <b>" not in page
    text = (folder / "localization.md").read_text()
    assert f"{found['highest_specificity_with_minmax']:.4f}" in text
    dice = found["scalings"]["gated"]["metrics"]["dice"]
    limits = "too few to say" if dice["low"] is None else f"{dice['low']:.3f} to {dice['high']:.3f}"
    assert f"{dice['value']:.3f} ({limits})" in text
    assert f"{dice['value']:.3f}" in done.stdout


def test_the_report_names_every_convention(trained, small_cohort):
    chosen = {"preset": "asmil_text", "conversion": "components", "scalings": ("times_n", "rank", "cohort")}
    truth = small_cohort.parent / "tile_truth.parquet"
    found = localize_run(trained, LocalizeSettings(truth=truth, resamples=5, device="cpu", **chosen))
    written = localization_dict(found)
    assert (written["preset"], written["conversion"], written["radius_tiles"]) == ("asmil_text", "components", None)
    assert list(written["scalings"]) == ["minmax", "times_n", "rank", "cohort"]
    document = localization_document(found)
    folded = " ".join(document.reading)
    assert all(name in folded for name in ("asmil_text", "components", "'attention'"))
    assert not any(name in document.answer + document.about for name in ("asmil_text", "components", "minmax"))


def test_slides_with_annotations(asmil_here, slides, tmp_path):
    done = asmil_here("localize", slides / "run", "--annotations", slides / "annotations", "--out", tmp_path, *FEW)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN
    notes = json.loads((tmp_path / "localization.json").read_text())["notes"]
    assert any(": tumor (" in note for note in notes)
    assert any(".geojson" in note and ".xml" in note for note in notes)
    table = pd.read_csv(tmp_path / "localization_slides.csv").set_index("slide")
    truth = pd.read_csv(slides / "truth.csv").set_index("slide").loc[table.index]
    assert table["tumor_mm2"].to_numpy() == pytest.approx(truth["tumor_mm2"].to_numpy(), rel=0.1, abs=0.01)
    assert (table["regions"] <= truth["foci"]).all()
    assert (table["is_normal"] == (truth["foci"] == 0)).all()


def test_asap_files_and_masks_give_the_numbers_of_geojson(slides, tmp_path):
    places = {kind: tmp_path / kind for kind in ("geojson", "xml", "mask")}
    for place in places.values():
        place.mkdir()
    for path in (slides / "annotations").iterdir():
        (places[path.suffix[1:]] / path.name).write_bytes(path.read_bytes())
        if path.suffix == ".geojson":
            info = inspect_features(FeatureSource(slides / "features" / f"{path.stem}.h5"))
            shape = (info.slide_height_px, info.slide_width_px)
            full = rasterize(tumor_area(read_annotations(path)).shape, shape, 1.0)
            tifffile.imwrite(places["mask"] / f"{path.stem}_mask.tif", full.astype(np.uint8), tile=(64, 64))
    tables = []
    for place in places.values():
        found = localize_run(slides / "run", LocalizeSettings(annotations=place, resamples=5, device="cpu"))
        assert not found.problems
        tables.append(pd.DataFrame(map(slide_row, found.slides)))
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert tables[2]["tumor_mm2"].to_numpy() == pytest.approx(tables[0]["tumor_mm2"].to_numpy(), rel=0.02)


def test_bad_slides_are_named_and_the_others_are_evaluated(asmil_here, slides, tmp_path):
    places = sorted((slides / "annotations").glob("*.geojson"))
    manifest = pd.read_csv(slides / "cohort.csv")
    chosen = set(manifest.loc[manifest["split"] == "train", "slide"])
    tumor = sorted(path.stem for path in places if path.stem in chosen)
    normal = sorted(chosen - set(tumor))
    (tmp_path / "a").mkdir()
    for path in places:
        (tmp_path / "a" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "a" / f"{tumor[0]}.geojson").write_text('{"type": "FeatureColl')
    (tmp_path / "a" / f"{normal[0]}.geojson").write_bytes(places[0].read_bytes())
    (tmp_path / "a" / "stranger.xml").write_text("<ASAP_Annotations/>")
    (tmp_path / "skip.txt").write_text(f"nobody\n{tumor[1]}  # in part\n")
    run = ("localize", slides / "run", "--role", "train", "--annotations", tmp_path / "a", "--out", tmp_path / "out")
    done = asmil_here(*run, "--skip-list", tmp_path / "skip.txt", *FEW)
    assert done.returncode == 1
    assert f"2 of {len(chosen) - 1} slides" in done.stderr
    assert f"{tumor[0]}.geojson: " in done.stderr
    assert f"{normal[0]}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert f"skip.txt: {tumor[1]}" in done.stdout
    found = json.loads((tmp_path / "out" / "localization.json").read_text())
    for name in ("stranger.xml", "nobody", "train slides"):
        assert any(name in note for note in found["notes"])
        assert name in done.stdout
    assert (found["tumor_slides"], found["normal_slides"]) == (len(tumor) - 2, len(normal) - 1)
    assert found["left_out"] == [tumor[1]]
    assert len(found["not_judged"]) == 2


def test_mistakes_are_one_sentence(asmil_here, trained, small_cohort, tmp_path):
    truth = ("--truth", small_cohort.parent / "tile_truth.parquet")
    for arguments, named in (
        ((trained,), "--annotations"),
        ((tmp_path, *truth), str(tmp_path)),
        ((trained, "--annotations", tmp_path / "no"), str(tmp_path / "no")),
        ((trained, *truth, "--scaling", "max"), "'minmax'"),
        ((trained, *truth, "--heatmap", "probability"), "'probability'"),
        ((trained, *truth, "--normal", "norml"), "'normal'"),
        ((trained, *truth, "--cohort", tmp_path / "no.csv"), "no.csv"),
    ):
        done = asmil_here("localize", *arguments, *FEW)
        assert done.returncode == 1
        assert named in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") <= 2
    assert not (trained / "localization-val").exists()
