"""The stability report: what its figures show and what it says, for any record."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from asmil.attention import nsf, softmax
from asmil.errors import AsmilError
from asmil.evaluation.stability import RunStability, read_stability
from asmil.evaluation.stability.bag_features import bag_feature_figure, drawn_slides, joint_layout, silhouettes
from asmil.evaluation.stability.figures import (
    choose_slide,
    course_figures,
    default_epochs,
    describe,
    histogram_figure,
    legend_names,
    nearest_recording,
    normalized,
    scored_slides,
)
from asmil.evaluation.stability.maps import map_rows, maps_figure
from asmil.evaluation.stability.report import write_stability_page
from asmil.reporting.drawing import raster, tile_cells, tile_pitch
from asmil.reporting.formats import format_share, format_significant
from asmil.runs.described import schedule_sentence
from asmil.runs.stored_settings import StoredSettings
from fake_recorded_slides import PITCH, FakeRun, tissue, write_fake_run
from parsed_page import Page

SMALL = FakeRun(n_slides=2, seeds=1, n_recordings=6, side=6)


def read_fake(path: Path, fake: FakeRun = SMALL, config: dict[str, object] | None = None) -> RunStability:
    return read_stability(write_fake_run(path, fake, config))


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunStability]:
    folder = tmp_path_factory.mktemp("runs")
    plain = read_fake(folder / "plain", FakeRun(side=8))
    anchor = {"anchor": {"normalizer": "nsf"}, "training": {"schedule": "constant"}}
    return [plain, read_fake(folder / "anchored", FakeRun(side=8, n_recordings=5), anchor)]


def page_of(stabilities: Sequence[RunStability], folder: Path) -> tuple[str, Page]:
    text = write_stability_page(stabilities, folder).read_text()
    return text, Page(text)


def test_the_page_of_two_runs(two_runs: list[RunStability], tmp_path: Path) -> None:
    text, page = page_of(two_runs, tmp_path)
    assert all(page.pictures), "every picture has a text for those who do not see it"
    assert all(address.startswith(("data:image/svg+xml;", "data:image/png;")) for address in page.addresses)
    words = " ".join(page.words)
    for wanted in (
        "2 runs",
        "abmil + anchor (nsf)",
        "Agreement between seeds (4)",
        "abmil: cosine",
        "abmil + anchor (nsf): constant, 0.0001",
        "10 recorded slides",
    ):
        assert wanted in words, wanted
    assert words.count("raw scores") == 1  # a caption is not repeated
    assert text.count("<code><span>--set</span> record.attention=all</code>") == 2
    files = {path.relative_to(tmp_path / "stability_pictures").as_posix() for path in tmp_path.rglob("*.*g")}
    assert files == {
        "course_jsd_previous.svg",
        "course_effective_share.svg",
        "course_ce.svg",
        "attention_maps.png",
        "run-1/score_histograms.svg",
        "run-2/score_histograms.svg",
    }
    inside = base64.b64encode((tmp_path / "stability_pictures" / "course_ce.svg").read_bytes()).decode()
    assert inside in text


def test_alarms_come_first(tmp_path: Path) -> None:
    flat = read_fake(tmp_path / "flat", replace(SMALL, sharpness=0.01, restless=0.001, with_scores=False))
    text, _ = page_of([flat], tmp_path)
    assert [alarm.kind for alarm in flat.alarms] == ["uniform"]
    assert text.index('class="note alarm"') < text.index("<table")
    assert "No alarm" in page_of([replace(flat, alarms=())], tmp_path)[0]


def test_names_are_escaped(tmp_path: Path) -> None:
    fake = replace(SMALL, classes=("<script>alert(1)</script>", "$x_{|"))
    stability = read_fake(tmp_path / "<b>run", fake, {"method": "<img onerror=x>", "note": "<script>x</script>"})
    text, page = page_of([stability], tmp_path)
    assert "script" not in page.tags
    assert "<img onerror" not in text
    assert "<b>run" in page.words


def test_one_slide_with_one_recording(tmp_path: Path) -> None:
    stability = read_fake(tmp_path / "run", FakeRun(n_slides=1, seeds=1, n_recordings=1, side=4))
    text, _ = page_of([stability], tmp_path)
    assert "<code><span>--seeds</span> 3</code>" in text
    assert (tmp_path / "stability_pictures" / "score_histograms.svg").is_file()


def test_an_unfinished_run_without_scores_or_places(tmp_path: Path) -> None:
    fake = replace(SMALL, with_coords=False, with_scores=False)
    path = write_fake_run(tmp_path / "run", fake, {"seeds": 3})
    (path / "fold-0" / "seed-0" / "predictions.parquet").unlink()
    _, page = page_of([read_stability(path)], tmp_path)
    words = " ".join(page.words)
    assert "without coordinates" in words
    assert "No scores" in words
    assert "1 of 3 trainings" in words
    assert not list(tmp_path.rglob("score_histograms.svg"))


def test_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(AsmilError, match="run"):
        write_stability_page([], tmp_path)


# what is chosen


def test_the_slide_is_one_of_the_last_class_that_all_runs_have(tmp_path: Path) -> None:
    few = read_fake(tmp_path / "few", replace(SMALL, n_slides=2))
    many = read_fake(tmp_path / "many", replace(SMALL, n_slides=6, classes=("a", "b", "c")))
    assert choose_slide([few]) == "slide-1"
    assert choose_slide([many]) == "slide-2"
    assert choose_slide([many, few], "slide-5") == "slide-5"
    with pytest.raises(AsmilError, match="'slide-5'"):
        choose_slide([many], "slide5")
    both = maps_figure([many, few], "slide-5")
    assert "few: abmil" in both.caption


def test_default_epochs_run_from_the_start_to_the_end(tmp_path: Path) -> None:
    long = read_fake(tmp_path / "long", replace(SMALL, n_recordings=51)).trainings[0]
    short = read_fake(tmp_path / "short", replace(SMALL, n_recordings=3)).trainings[0]
    assert default_epochs([short, long]) == [0, 1, 13, 26, 38, 50]
    assert default_epochs([short]) == [0, 1, 1.25, 1.5, 1.75, 2]


def test_the_nearest_recording_or_none() -> None:
    epochs = np.arange(11.0)
    assert nearest_recording(epochs, 3.4) == 3
    assert nearest_recording(epochs, 10.6) is None
    assert nearest_recording(np.arange(0, 10, 0.02), 5.0) == 250
    assert nearest_recording(np.array([0.0, 3.0, 6.0]), 4.4) == 1
    assert nearest_recording(np.array([0.0]), 1.0) is None


def test_columns_of_the_maps(two_runs: list[RunStability]) -> None:
    long, short = map_rows(two_runs, "slide-1")
    assert [long.training.record.epochs[i] for i in long.recordings if i is not None] == [0, 1, 4, 6, 8, 9, 11]
    assert short.recordings == (0, 1, 2, 4, None, None, None)
    asked = map_rows(two_runs, "slide-1", [0, 0.3, 9, 11])
    assert [row.recordings for row in asked] == [(0, 9, 11), (0, None, None)]
    late = maps_figure(two_runs, "slide-1", [9])
    assert late.caption.endswith("abmil + anchor (nsf).")
    with pytest.raises(AsmilError, match=r"40, 50.*0 to 11"):
        map_rows(two_runs, "slide-1", [40, 50])


def test_equal_labels_are_told_apart(two_runs: list[RunStability]) -> None:
    plain, anchored = two_runs
    assert legend_names([plain, anchored]) == ["abmil", "abmil + anchor (nsf)"]
    assert legend_names([plain, replace(plain, name="again")]) == ["plain: abmil", "again: abmil"]


# maps


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 600), st.integers(0, 2**16), st.integers(0, 2**32 - 1))
def test_tiles_of_a_grid_get_a_cell_each(side: int, pitch: int, corner: int, seed: int) -> None:
    y, x = np.divmod(np.random.default_rng(seed).permutation(side * side), side)
    coords = corner + pitch * np.stack([x, y], axis=1)
    values = np.random.default_rng(seed).random(len(coords))
    assert tile_pitch(coords) == pitch
    cells, shape = tile_cells(coords, max_cells=256)
    assert shape == (side, side)
    image = raster(values, cells, shape)
    np.testing.assert_array_equal(image[y, x], values)


def test_a_hundred_thousand_tiles_keep_their_peak() -> None:
    coords = tissue(300)
    assert len(coords) > 90_000
    values = np.zeros(len(coords))
    values[4321] = 7.0
    cells, shape = tile_cells(coords, max_cells=256)
    image = raster(values, cells, shape)
    assert max(shape) == 256
    assert np.nanmax(image) == 7.0
    assert np.isnan(image[0, 0])


def test_tiles_off_the_grid_and_tiles_in_one_place() -> None:
    coords = np.random.default_rng(0).integers(0, 100_000, (500, 2))
    cells, shape = tile_cells(coords, max_cells=256)
    assert cells.max() < shape[0] * shape[1]
    assert tile_cells(np.array([[5, 9], [5, 9]]), max_cells=256)[1] == (1, 1)


def test_the_lesion_lights_up_where_it_lies(tmp_path: Path) -> None:
    stability = read_fake(tmp_path / "run", replace(SMALL, side=20, restless=0.0, sharpness=3))
    content = maps_figure([stability], "slide-1", [5]).content
    assert isinstance(content, bytes)
    picture = imread(io.BytesIO(content))
    yellow = (picture[..., 0] > 0.9) & (picture[..., 1] > 0.8) & (picture[..., 2] < 0.3)
    height, width = yellow.shape
    found = np.argwhere(yellow[:, : round(0.85 * width)])  # without the color scale
    assert len(found) > 50
    center = found.mean(axis=0) / (height, width)
    assert 0.1 < center[1] < 0.35  # the left piece of tissue takes the left half of the map
    assert 0.35 < center[0] < 0.65


# numbers beside the pictures


def test_the_schedule_is_named() -> None:
    settings = StoredSettings.model_validate({"training": {"schedule": "cosine", "lr": 1e-3, "lr_min": 1e-5}})
    assert "from 0.001 to 1e-05" in schedule_sentence(settings)
    drops = {"schedule": "constant", "lr": 1e-3, "lr_drops": [10, 20], "lr_drop_factor": 0.2}
    assert "times 0.2 after epoch 10, 20" in schedule_sentence(StoredSettings.model_validate({"training": drops}))
    assert "unknown" in schedule_sentence(StoredSettings())


def test_many_recordings_stay_a_small_picture(tmp_path: Path) -> None:
    fake = FakeRun(n_slides=1, seeds=2, n_recordings=1500, side=3, epochs_apart=0.02)
    content = course_figures([read_fake(tmp_path / "run", fake)])["course_jsd_previous"].content
    assert isinstance(content, str)
    assert len(content) < 300_000


def test_scores_are_those_of_one_slide_a_class(tmp_path: Path) -> None:
    stability = read_fake(tmp_path / "run", replace(SMALL, n_slides=5))
    n_tiles = len(tissue(SMALL.side))
    slides = scored_slides(stability)
    assert [title.partition(" ")[0] for title in slides] == ["slide-0", "slide-1"]
    assert [scores.shape for scores in slides.values()] == [(2, n_tiles)] * 2
    assert isinstance(histogram_figure(stability).content, str)


def test_normalizers_are_those_of_the_attention_room() -> None:
    import torch

    scores = np.random.default_rng(0).normal(size=(3, 50))
    np.testing.assert_allclose(normalized(scores, "softmax", {}), softmax(torch.from_numpy(scores)).numpy())
    np.testing.assert_allclose(normalized(scores, "nsf", {}), nsf(torch.from_numpy(scores)).numpy())


def test_concentration_in_words() -> None:
    uniform = np.full((2, 200), 1 / 200)
    assert re.findall(r"[\d.]+ %", describe(uniform)) == ["100 %", "1 %", "1 %"]
    one_tile = np.eye(200)[:2]
    assert re.findall(r"[\d.]+ %", describe(one_tile)) == ["0.5 %", "1 %", "100 %", "99.5 %"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (-0.5, "-0.5"),
        (3.21e-7, "3.2e-7"),
        (0.9996, "1"),
        (12345.6, "12346"),
    ],
)
def test_measures_are_short(value: float | None, text: str) -> None:
    assert format_significant(value) == text


def test_a_share_is_rounded_neither_to_nothing_nor_to_all() -> None:
    assert format_share(1e-6) == "0.0001 %"
    assert format_share(0.99999) == "99.99 %"
    assert format_share(1.0) == "100 %"


# bag features


def test_bag_features_of_enough_slides(tmp_path: Path) -> None:
    fake = FakeRun(n_slides=24, seeds=1, n_recordings=4, side=3, with_val=True)
    stability = read_fake(tmp_path / "run", fake)
    picture = bag_feature_figure(stability)
    assert isinstance(picture.content, str)
    assert picture.content == bag_feature_figure(stability).content
    record = stability.trainings[0].record
    start, end = silhouettes(record, 0), silhouettes(record, 3)
    assert set(start) == {"train", "val"}
    assert start["train"] < 0.1 < 0.2 < end["train"]


def test_of_many_slides_some_of_every_class_are_drawn(tmp_path: Path) -> None:
    fake = FakeRun(n_slides=60, seeds=1, n_recordings=1, side=2, classes=("a", "b", "c"))
    record = read_fake(tmp_path / "run", fake).trainings[0].record
    drawn = drawn_slides(record, most=9)
    assert len(set(drawn.tolist())) == 9
    assert np.bincount(record.targets[drawn]).tolist() == [3, 3, 3]
    assert drawn_slides(record, most=60).tolist() == list(range(60))


def test_silhouettes_need_two_classes(tmp_path: Path) -> None:
    stability = read_fake(tmp_path / "run", replace(SMALL, n_slides=4, classes=("a", "b", "c", "d")))
    assert np.isnan(silhouettes(stability.trainings[0].record, 0)["train"])


def test_panels_share_one_layout_that_tells_groups_apart() -> None:
    rng = np.random.default_rng(0)
    features = np.stack([rng.normal(size=(30, 5)), rng.normal(size=(30, 5)) + 40])
    places = joint_layout(features)
    assert places.shape == (2, 30, 2)
    centers = places.mean(axis=1)
    spread = np.abs(places - centers[:, None]).mean()
    assert np.abs(centers[0] - centers[1]).max() > 3 * spread
    assert not joint_layout(np.ones((2, 6, 3))).any()
    assert np.isfinite(joint_layout(rng.normal(size=(1, 12, 1)))).all()


def test_bag_features_that_are_not_finite(tmp_path: Path) -> None:
    stability = read_fake(tmp_path / "run", FakeRun(n_slides=12, seeds=1, n_recordings=3, side=3))
    training = stability.trainings[0]
    broken = training.record.embedding.copy()
    broken[0, 0, 0] = np.nan
    record = replace(training.record, embedding=broken)
    picture = bag_feature_figure(replace(stability, trainings=(replace(training, record=record),)))
    assert picture.content is None
    assert "not finite" in picture.caption


def test_pitch_is_the_one_of_the_fake() -> None:
    assert tile_pitch(tissue(9)) == PITCH
