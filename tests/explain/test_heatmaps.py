"""`asmil heatmap`: from a run to pictures, with and without slides, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import tifffile
import torch
import yaml
from PIL import Image

import asmil
from asmil.cohort.features import Provenance, write_features
from asmil.evaluation.run_alarms import alarms_of_run
from asmil.explain.asked_slides import asked_slides
from asmil.explain.canvas import ALARM_INK, PICTURE_BOXES, boxes_of
from asmil.explain.run_explainer import RunExplainer
from asmil.explain.score_files import read_scores
from asmil.export.bundle import write_bundle
from asmil.runs.attention_file import read_attention
from asmil.runs.cohort import RunCohort
from asmil.runs.run import Run
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.slides.qc import read_picture
from patience import PATIENCE_S
from ray_cluster import ray_cluster

SMALL = {"training.epochs": 1, "model.attention": 8, "model.inner": 8}
TILE, WIDTH = 64, 8
FEW = ("--quiet", "--device", "cpu", "--workers", 0)


def write_slide(folder: Path, name: str, seed: int, image: bool) -> None:
    draw = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(6) * TILE, np.arange(5) * TILE)
    coords = np.stack([x.ravel(), y.ravel()], axis=1)
    known = Provenance(
        encoder="made", tile_px_level0=TILE, mpp=1.0, slide_width_px=6 * TILE, slide_height_px=5 * TILE, tile_um=64.0
    )
    write_features(folder / "features" / f"{name}.h5", draw.normal(size=(30, WIDTH)), coords, known)
    if image:
        pixels = draw.integers(60, 230, (5 * TILE, 6 * TILE, 3), dtype=np.uint8)
        (folder / "slides").mkdir(exist_ok=True)
        write_pyramid(folder / "slides" / f"{name}.tif", pixels, 1.0, downsamples=(4,))


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """Eight slides, one without its image, and a run with two seeds on them."""
    folder = tmp_path_factory.mktemp("lab")
    names = [f"s{number}" for number in range(8)]
    for number, name in enumerate(names):
        write_slide(folder, name, number, image=name != "s7")
    split = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    labels = ["a", "b"] * 4
    pd.DataFrame({"slide": names, "label": labels, "split": split}).to_csv(folder / "cohort.csv", index=False)
    asmil.train(folder / "cohort.csv", folder / "run", method="abmil", seeds=2, settings=SMALL, progress=False)
    return folder


def panels_of(path: Path) -> list[np.ndarray]:
    """The pictures of a figure, without color bars."""
    with Image.open(path) as picture:
        boxes = boxes_of(picture.text[PICTURE_BOXES])
        pixels = np.asarray(picture)
    return [pixels[box.pixels] for box in boxes if box.height > 100]


def test_the_test_slides_are_drawn_once(lab, tmp_path, asmil_here):
    out = tmp_path / "maps"
    command = ("heatmap", lab / "run", "--out", out, "--qupath", "--tiff", *FEW)
    done = asmil_here(*command)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(out / "heatmaps.csv")
    assert table["slide"].tolist() == ["s6", "s7"]
    assert (table["tiles"] == 30).all()
    assert {path.name for path in out.glob("s6*")} == {
        "s6.png", "s6_tiles.png", "s6_overlay.tif", "s6_tiles.geojson", "s6_regions.geojson"
    }  # fmt: skip
    assert not (out / "s7_tiles.png").exists(), "there is no slide to cut tiles from"
    assert "s7" in done.stderr
    assert read_picture(out / "s6.png").shape[1] > read_picture(out / "s7.png").shape[1]
    tiles = json.loads((out / "s6_tiles.geojson").read_text(encoding="utf-8"))["features"]
    measured = tiles[0]["properties"]["measurements"]
    assert set(measured) == {
        "attention", "attention relative to average", "percentile", "probability a", "probability b"
    }  # fmt: skip
    assert measured["attention relative to average"] == pytest.approx(30 * measured["attention"], rel=1e-4)
    assert measured["probability a"] + measured["probability b"] == pytest.approx(1, abs=1e-4)
    values = asmil.load_run(lab / "run", "cpu").attention("s6").tile_map
    written = [one["properties"]["measurements"]["attention"] for one in tiles]
    np.testing.assert_allclose(written, values, rtol=1e-4)
    changed = (out / "s6.png").stat().st_mtime_ns
    (out / "s7.png").unlink()
    again = asmil_here(*command)
    assert again.returncode == 0
    assert (out / "s7.png").exists()
    assert (out / "s6.png").stat().st_mtime_ns == changed
    other = asmil_here("heatmap", lab / "run", "--out", out, "--scale", "absolute", *FEW)
    assert other.returncode == 1
    assert "scale" in other.stderr


def alarm_pixels(path: Path) -> int:
    return int((read_picture(path) == ALARM_INK).all(axis=2).sum())


def test_alarms_of_the_run_are_on_every_picture_and_in_every_file(lab, tmp_path, asmil_here):
    out = tmp_path / "maps"
    done = asmil_here("heatmap", lab / "run", "s6", "s7", "--out", out, "--qupath", "--tiff", *FEW)
    assert done.returncode == 0, done.stderr
    alarms = alarms_of_run(lab / "run")
    assert "uniform" in [alarm.kind for alarm in alarms]
    for alarm in alarms:
        assert alarm.finding in done.stderr
        assert all(alarm.finding in said for said in pd.read_csv(out / "heatmaps.csv")["alarms"])
        assert alarm.finding in tifffile.TiffFile(out / "s6_overlay.tif").pages[0].description
    for name in ("s6.png", "s6_tiles.png", "s7.png"):
        assert alarm_pixels(out / name) > 100
    for name in ("s6_tiles.geojson", "s6_regions.geojson"):
        content = json.loads((out / name).read_text(encoding="utf-8"))
        assert content["asmil"]["alarms"] == [alarm.finding for alarm in alarms]
        assert content["asmil"]["notes"]
    region = content["features"][0]["properties"]
    assert alarms[0].finding in region["metadata"]["alarms"]
    assert alarms[0].finding in region["name"]


def test_the_default_scale_shows_flat_attention_as_flat(lab, tmp_path, asmil_here):
    for scale in ((), ("--scale", "percentile")):
        done = asmil_here("heatmap", lab / "run", "s7", *scale, "--out", tmp_path / "".join(scale[1:] or "m"), *FEW)
        assert done.returncode == 0, done.stderr
    spread = [
        np.ptp(panels_of(tmp_path / name / "s7.png")[0][:500].astype(int), axis=(0, 1)).max()
        for name in ("m", "percentile")
    ]
    assert "flat" in pd.read_csv(tmp_path / "m" / "heatmaps.csv")["notes"][0]
    assert spread[0] < spread[1] / 3


def test_maps_of_a_bundle_and_files_of_attention_carry_the_alarms_of_the_run(lab, tmp_path, asmil_here):
    write_bundle(lab / "run", tmp_path / "bundle")
    features = lab / "features" / "s6.h5"
    drawn = asmil_here("heatmap", tmp_path / "bundle", features, "--out", tmp_path / "maps", *FEW)
    assert drawn.returncode == 0, drawn.stderr
    assert alarm_pixels(tmp_path / "maps" / "s6.png") > 100
    done = asmil_here("predict", lab / "run", features, "--attention", "--out", tmp_path / "p.csv", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "p_attention" / "s6.h5") as file:
        assert list(file.attrs["alarms"]) == [alarm.finding for alarm in alarms_of_run(lab / "run")]


def test_several_maps_in_one_figure(lab, tmp_path, asmil_here):
    run = lab / "run"
    one = asmil_here("heatmap", run, "s6", "--out", tmp_path / "one", *FEW)
    seeds = asmil_here("heatmap", run, "s6", "--by", "seed", "--out", tmp_path / "seeds", *FEW)
    kinds = [part for kind in ("attention", "gradient", "leave_one_out") for part in ("--kind", kind)]
    several = asmil_here(
        "heatmap", run, run, "--slide", "s6", *kinds, "--class", "b", "--out", tmp_path / "kinds", *FEW
    )
    epochs = asmil_here("heatmap", run, "s0", "--by", "epoch", "--out", tmp_path / "epochs", *FEW)
    assert [done.returncode for done in (one, seeds, several, epochs)] == [0, 0, 0, 0], several.stderr + epochs.stderr
    areas = [read_picture(tmp_path / name / "s6.png").size for name in ("one", "seeds", "kinds")]
    assert areas[0] < min(areas[1:])
    table = pd.read_csv(tmp_path / "kinds" / "heatmaps.csv")
    assert table["kinds"][0].split(";") == ["attention", "gradient x input", "leave one out"]
    assert "class b" in table["about"][0]
    assert "trained on" in pd.read_csv(tmp_path / "epochs" / "heatmaps.csv")["notes"][0]
    assert table["about"][0].count("probability") == 2, "what each run says"


def test_the_highest_tiles_of_recorded_epochs_are_those_of_the_last_one(lab, tmp_path, asmil_here):
    out = tmp_path / "epochs"
    done = asmil_here("heatmap", lab / "run", "s0", "--by", "epoch", "--qupath", "--out", out, *FEW)
    assert done.returncode == 0, done.stderr
    tiles = json.loads((out / "s0_tiles.geojson").read_text(encoding="utf-8"))["features"]
    written = [one["properties"]["measurements"]["attention"] for one in tiles]
    record = read_attention(lab / "run" / "fold-0" / "seed-0")
    np.testing.assert_allclose(written, record.attention(record.slides.index("s0"))[-1], rtol=1e-3)


def test_scores_of_other_models(lab, tmp_path, asmil_here):
    np.save(tmp_path / "scores.npy", np.linspace(0, 1, 30))
    slide, features = lab / "slides" / "s6.tif", lab / "features" / "s6.h5"
    done = asmil_here(
        "heatmap", slide, "--scores", tmp_path / "scores.npy", "--features", features, "--out", tmp_path / "a", *FEW
    )
    assert done.returncode == 0, done.stderr
    coords = [(x * TILE, y * TILE) for x in range(6) for y in range(5)]
    table = pd.DataFrame(coords, columns=["x", "y"]).assign(score=1.0)
    table.loc[3, "score"] = 4.0
    table.to_csv(tmp_path / "scores.csv", index=False)
    done = asmil_here("heatmap", slide, "--scores", tmp_path / "scores.csv", "--out", tmp_path / "b", *FEW)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b" / "s6_tiles.png").exists()
    table.loc[:4, "score"] = np.nan
    table.to_csv(tmp_path / "gaps.csv", index=False)
    done = asmil_here("heatmap", slide, "--scores", tmp_path / "gaps.csv", "--out", tmp_path / "gaps", *FEW)
    assert done.returncode == 0, done.stderr
    assert "5 of 30" in pd.read_csv(tmp_path / "gaps" / "heatmaps.csv")["notes"][0]
    np.save(tmp_path / "few.npy", np.zeros(29))
    done = asmil_here(
        "heatmap", slide, "--scores", tmp_path / "few.npy", "--features", features, "--out", tmp_path / "c", *FEW
    )
    assert done.returncode == 1
    assert "29" in done.stderr
    assert "30" in done.stderr


def test_masks_are_drawn_as_outlines(lab, tmp_path, asmil_here):
    mask = np.zeros((5 * TILE, 6 * TILE), dtype=np.uint8)
    mask[TILE : 3 * TILE, TILE : 4 * TILE] = 2
    mask[0, 0] = 1
    (tmp_path / "masks").mkdir()
    tifffile.imwrite(tmp_path / "masks" / "s6_mask.tif", mask)
    command = ("heatmap", lab / "run", "s6", "--annotations", tmp_path / "masks", *FEW)
    done = asmil_here(*command, "--mask-value", 2, "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    drawn = asmil_here(*command, "--mask-value", 3, "--out", tmp_path / "three")
    assert drawn.returncode == 0, drawn.stderr
    _, plain, outlined = panels_of(tmp_path / "two" / "s6.png")
    changed = np.abs(outlined.astype(int) - plain).max(axis=2) > 0
    assert np.ptp(np.flatnonzero(changed.any(axis=0))) == pytest.approx(900 / 2, abs=20), "half of the panel is marked"
    assert len(panels_of(tmp_path / "three" / "s6.png")) == 2, "there is nothing to outline"
    assert "annotations" in pd.read_csv(tmp_path / "three" / "heatmaps.csv")["notes"][0]
    unknown = asmil_here(*command, "--out", tmp_path / "unknown")
    assert unknown.returncode == 1
    assert "s6_mask.tif" in unknown.stderr
    other = asmil_here("heatmap", lab / "run", "s6", "--out", tmp_path / "two", *FEW)
    assert other.returncode == 1
    assert "annotations" in other.stderr


def test_no_run_is_drawn_on_features_of_another_encoder(lab, tmp_path, asmil_here):
    other = tmp_path / "other"
    shutil.copytree(lab / "run", other)
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["features"]["encoder"] = "another_encoder"
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    for name, runs in {"first": (other, lab / "run"), "second": (lab / "run", other)}.items():
        done = asmil_here("heatmap", *runs, "--slide", "s6", "--out", tmp_path / name, *FEW)
        assert done.returncode == 1
        assert "another_encoder" in done.stderr
        assert not list((tmp_path / name).glob("*.png"))


@pytest.mark.heavy
def test_processes_draw_what_is_missing(lab, tmp_path, asmil_here):
    out = tmp_path / "maps"
    assert asmil_here("heatmap", lab / "run", "s6", "--out", out, *FEW).returncode == 0
    drawn = (out / "s6.png").stat().st_mtime_ns
    done = asmil_here("heatmap", lab / "run", "s4", "s6", "--out", out, "--quiet", "--device", "cpu", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert (out / "s6.png").stat().st_mtime_ns == drawn
    assert asmil_here("heatmap", lab / "run", "s4", "--out", tmp_path / "here", *FEW).returncode == 0
    np.testing.assert_array_equal(read_picture(out / "s4.png"), read_picture(tmp_path / "here" / "s4.png"))


@pytest.mark.heavy
def test_a_killed_command_is_resumed_in_processes(lab, tmp_path, asmil_here):
    out = tmp_path / "maps"
    command = ("heatmap", lab / "run", "--role", "all", "--out", out, "--quiet", "--device", "cpu", "--workers", 2)
    begun = subprocess.Popen([sys.executable, "-m", "asmil", *map(str, command)], start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(list(out.glob("s?.png"))) < 2 and begun.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
    done = asmil_here(*command)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(out / "heatmaps.csv")
    assert table["slide"].tolist() == [f"s{number}" for number in range(8)]
    assert all((out / name).is_file() for files in table["files"] for name in files.split(";"))
    assert not [path.name for path in out.rglob("*.tmp*")]


@pytest.mark.heavy
def test_a_cohort_on_a_ray_cluster(lab, tmp_path, asmil_here):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with ray_cluster(Path(__file__).parent, num_cpus=2) as cluster:
        command = ("heatmap", lab / "run", "--role", "all", "--engine", "ray", "--address", cluster.address)
        done = asmil_here(*command, "--out", tmp_path / "maps", "--quiet", "--device", "cpu")
        assert done.returncode == 0, done.stderr
    assert pd.read_csv(tmp_path / "maps" / "heatmaps.csv")["slide"].tolist() == [f"s{number}" for number in range(8)]
    assert all((tmp_path / "maps" / f"s{number}.png").is_file() for number in range(8))


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("none.npy", None, "none.npy"),
        ("broken.npy", b"\x93NUMPY", "broken.npy"),
        ("broken.h5", b"nothing", "broken.h5"),
        ("two.csv", b"p,q\n1,2\n", "score"),
        ("words.csv", b"x,y,score\n1,2,high\n", "score"),
        ("word.csv", b"x,y,score\n1,2,3\n1,2,high\n", "row 2"),
        ("gap.csv", b"x,y,score\n1,,3\n", "gap.csv"),
        ("twice.csv", b"score,Score\n1,2\n", "twice.csv"),
        ("broken.parquet", b"PAR1", "broken.parquet"),
        ("what.txt", b"1", "what.txt"),
    ],
)
def test_scores_that_cannot_be_read(tmp_path, name, content, match):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((asmil.AsmilError, FileNotFoundError), match=match):
        read_scores(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("suffix", [".npy", ".csv", ".h5", ".parquet"])
def test_scores_that_are_not_finite_are_refused_by_row(tmp_path, suffix, value):
    path, values = tmp_path / f"s7{suffix}", np.linspace(0, 1, 6)
    values[4] = value
    if suffix == ".npy":
        np.save(path, values[:, None])
    elif suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["attention_scores"], file["coords"] = values[:, None], np.arange(12).reshape(6, 2)
    elif suffix == ".csv":
        path.write_text("x,y,score\n" + "".join(f"{row},0,{score}\n" for row, score in enumerate(values.tolist())))
    else:
        pd.DataFrame({"score": values}).to_parquet(path)
        if np.isnan(value):  # pandas and Parquet make no difference between nan and an empty cell
            assert np.isnan(read_scores(path).values).tolist() == [False] * 4 + [True, False]
            return
    with pytest.raises(asmil.AsmilError, match=rf"s7{suffix}.*row 5"):
        read_scores(path)


@pytest.mark.parametrize("coords", [np.full((6, 2), np.nan), np.full((6, 2), 1e300), np.zeros((5, 2)), np.zeros(6)])
def test_corners_that_are_on_no_slide_are_refused(tmp_path, coords):
    with h5py.File(tmp_path / "s7.h5", "w") as file:
        file["attention"], file["coords"] = np.ones(6), coords
    with pytest.raises(asmil.AsmilError, match=r"s7\.h5"):
        read_scores(tmp_path / "s7.h5")


def test_bad_slides_are_listed_and_the_others_drawn(lab, tmp_path, asmil_here):
    folder = tmp_path / "lab"
    (folder / "slides").mkdir(parents=True)
    write_slide(folder, "good", 20, image=True)
    write_slide(folder, "other", 21, image=True)
    pixels = np.zeros((100, 90, 3), np.uint8)
    write_pyramid(folder / "slides" / "other.tif", pixels, 1.0, downsamples=(4,))
    torch.save(torch.zeros(30, WIDTH), folder / "features" / "placeless.pt")
    words = [folder / "features" / name for name in ("good.h5", "other.h5", "placeless.pt")]
    out = tmp_path / "maps"
    done = asmil_here("heatmap", lab / "run", *words, "--slides", folder / "slides", "--out", out, *FEW)
    assert done.returncode == 1
    assert (out / "good.png").exists(), done.stderr
    assert "2 of 3" in done.stderr
    assert "other" in done.stderr
    assert "384 x 320" in done.stderr
    assert "placeless" in done.stderr
    assert "coordinates" in done.stderr


def test_mistakes_are_told(lab, tmp_path, asmil_here):
    for arguments, told in [
        ((lab, "s6"), "run folder"),
        ((lab / "run", "s66"), "s66"),
        ((lab / "run", "s6", "--class", "c"), "'c'"),
        ((lab / "run", "s6", "--kind", "atention"), "attention"),
        ((lab / "run", "s6", "--color-map", "jet"), "jet"),
        ((lab / "run", "s1", "--by", "epoch", "--features", lab / "features" / "s1.h5"), "s1"),
    ]:
        done = asmil_here("heatmap", *arguments, "--out", tmp_path / told.strip("'"), *FEW)
        if told == "s1" and done.returncode == 0:
            continue  # whether this slide was recorded is the recorder's choice
        assert done.returncode == 1
        assert told in done.stderr


def test_slides_are_found_by_many_words(lab):
    cohort = RunCohort(lab / "cohort.csv")
    for word in ("s6", str(lab / "features" / "s6.h5"), str(lab / "slides" / "s6.tif")):
        (found,) = asked_slides([word], cohort)
        assert found.name == "s6"
        assert found.slide is not None
        assert found.image == lab / "slides" / "s6.tif"
    assert len(asked_slides([str(lab / "features")], cohort)) == 8
    assert len(asked_slides([str(lab / "cohort.csv")], cohort)) == 8
    assert asked_slides(["s7"], cohort)[0].image is None
    elsewhere = lab / "features" / "s3.h5"
    assert asked_slides([str(lab / "slides" / "s3.tif")], cohort, elsewhere)[0].slide is not None
    assert asked_slides([], cohort, elsewhere, of_role=["s6"])[0].slide is None
    with pytest.raises(asmil.AsmilError, match="features"):
        asked_slides([str(lab / "slides" / "s6.tif")], RunCohort(None))


def test_slides_are_explained_by_models_that_did_not_see_them(lab):
    explainer = RunExplainer(Run(lab / "run", "cpu"))
    assert not explainer.run.saw("s6")
    assert explainer.run.saw("s0")
    assert explainer.kinds[0] == "attention"
    (asked,) = asked_slides(["s6"], RunCohort(lab / "cohort.csv"))
    bag, _ = explainer.run.bag(asked.slide)
    found = explainer.explain(bag, "leave_one_out")
    assert found.n_models == 2
    assert found.values.shape == (30,)


def test_the_python_interface(lab, tmp_path):
    run = asmil.load_run(lab / "run", "cpu")
    found = run.explain("s6", kind="gradient", name="b")
    assert (found.kind, found.name, found.n_models) == ("gradient", "b", 2)
    np.testing.assert_allclose(run.explain("s6").values, run.attention("s6").tile_map, rtol=1e-5)
    result = run.heatmap("s6", tmp_path / "maps", tiles=0, scale="absolute")
    assert [row.slide for row in result.rows] == ["s6"]
    assert (tmp_path / "maps" / "s6.png").is_file()
    with pytest.raises(asmil.AsmilError, match="opacity"):
        run.heatmap("s6", tmp_path / "other", opacty=1)
