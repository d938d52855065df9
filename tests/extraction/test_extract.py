"""The whole way from slides to feature files, on one machine, and what happens to bad slides."""

import json
import os
import re
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import tifffile
import torch
import yaml

from array_slide import texture
from asmil.cohort.features import inspect_features, read_bag
from asmil.cohort.source import FeatureSource
from asmil.engine.inline import InlineEngine
from asmil.errors import AsmilError
from asmil.extraction.extract import extract, identify
from asmil.extraction.settings import parse_extraction
from asmil.extraction.store import FeatureFolder
from asmil.extraction.worker import WorkerPlan
from asmil.settings.made_from import DoneBefore
from asmil.slides.discovery import find_slides
from asmil.slides.encoders.registry import load_encoder
from asmil.slides.opening import open_slide
from asmil.slides.pyramid_tiff import write_pyramid
from asmil.slides.survey.folder import SurveyFolder
from asmil.slides.tiling import TileReader
from small_slides import WHITE, tissue_pixels, write_slide, write_slides

ENCODER = "tiny_encoder:ColorMoments"
ADDED = ("quality", "leave_out")
TILING = {"tile_um": 64.0, "tile_px": 64}


def plan_for(encoder: str = ENCODER, **settings: object) -> WorkerPlan:
    config = parse_extraction({"encoder": encoder, "tiling": TILING, **settings})
    return WorkerPlan(config, identify(encoder, None))


def run(slides: Path, out: Path, plan: WorkerPlan | None = None, again: bool = False) -> dict:
    done = extract(find_slides(slides), out, plan or plan_for(), InlineEngine(2), done_before=DoneBefore(again))
    return {result.slide: result for result in done}


def stored(path: Path):
    return read_bag(FeatureSource(path), path.stem)


def test_features_are_those_of_the_tiles_at_the_stored_places(tmp_path):
    write_slides(tmp_path / "slides", 2)
    results = run(tmp_path / "slides", tmp_path / "features")
    encoder = load_encoder(ENCODER)
    for name, result in results.items():
        bag = stored(tmp_path / "features" / f"{name}.h5")
        assert result.report.n_tiles == len(bag) > 50
        with open_slide(tmp_path / "slides" / f"{name}.tif") as image:
            tiles = TileReader(image, 64, 64).read(bag.coords.numpy())
            expected = encoder(torch.from_numpy(tiles)).half()
        np.testing.assert_allclose(bag.features.numpy(), expected.numpy(), atol=2e-3)
        assert (tmp_path / "features" / "qc" / f"{name}.jpg").stat().st_size > 1000


def test_provenance_is_complete(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif", mpp=1.0)
    run(tmp_path / "slides", tmp_path / "features")
    info = inspect_features(FeatureSource(tmp_path / "features" / "a.h5"))
    assert (info.encoder, info.tile_um, info.tile_px, info.tile_px_level0) == (ENCODER, 64.0, 64, 64)
    assert info.mpp == pytest.approx(1.0)
    assert info.mpp_source
    assert (info.slide_width_px, info.slide_height_px) == (1024, 1024)
    about = json.loads(info.extraction)
    assert about["settings"]["tiling"]["overlap"] == 0
    assert about["slide"]["file"] == "a.tif"
    assert 0.2 < about["tissue"]["share"] < 0.6
    assert about["precision"] == "float32"


def test_what_is_done_is_never_done_again_and_what_changed_is(tmp_path):
    slides, out = tmp_path / "slides", tmp_path / "features"
    write_slides(slides, 3)
    run(slides, out)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    assert all(result.before for result in run(slides, out).values())
    write_slide(slides / "slide-1.tif", side_px=900, seed=9)
    (out / "slide-2.h5").write_bytes(b"half a file")
    with pytest.raises(AsmilError, match=r"slide-1: slide image"):
        run(slides, out)
    assert (out / "slide-2.h5").read_bytes() == b"half a file"
    results = run(slides, out, again=True)
    assert [results[f"slide-{n}"].before for n in range(3)] == [True, False, False]
    assert (out / "slide-0.h5").stat().st_mtime_ns == times["slide-0.h5"]
    assert inspect_features(FeatureSource(out / "slide-1.h5")).slide_width_px == 900
    assert len(stored(out / "slide-2.h5")) > 50


def test_another_resolution_from_the_user_is_another_extraction_of_that_slide(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif", mpp=1.0)
    (tmp_path / "table.csv").write_text("slide,mpp\na,0.5\n")
    run(tmp_path / "slides", tmp_path / "features")
    with pytest.raises(AsmilError, match=r"a: mpp: there 1.0, asked 0.5"):
        run(tmp_path / "table.csv", tmp_path / "features")
    results = run(tmp_path / "table.csv", tmp_path / "features", again=True)
    assert not results["a"].before
    info = inspect_features(FeatureSource(tmp_path / "features" / "a.h5"))
    assert (info.mpp, info.mpp_source, info.tile_px_level0) == (0.5, "given", 128)
    assert run(tmp_path / "table.csv", tmp_path / "features")["a"].before


def test_settings_never_mix(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif")
    run(tmp_path / "slides", tmp_path / "features")
    other = plan_for(tiling={**TILING, "overlap": 0.5})
    with pytest.raises(AsmilError, match=r"tiling.overlap: there 0.0, asked 0.5"):
        run(tmp_path / "slides", tmp_path / "features", other)
    (tmp_path / "features" / "extraction.yaml").unlink()
    with pytest.raises(AsmilError, match=r"a: tiling.overlap"):
        run(tmp_path / "slides", tmp_path / "features", other)
    assert not (tmp_path / "features" / "extraction.yaml").exists()
    assert not run(tmp_path / "slides", tmp_path / "features", other, again=True)["a"].before


def test_a_file_of_another_tool_is_not_overwritten(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif")
    (tmp_path / "features").mkdir()
    with h5py.File(tmp_path / "features" / "a.h5", "w") as file:
        file["features"] = np.zeros((3, 4), np.float32)
    assert "asmil extract" in run(tmp_path / "slides", tmp_path / "features")["a"].error


def test_tissue_of_files_is_recorded_and_an_edit_is_noticed(tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    slides, drawn, out = tmp_path / "slides", tmp_path / "drawn", tmp_path / "features"
    write_slides(slides, 3)
    drawn.mkdir()
    square = [[256, 256], [512, 256], [512, 512], [256, 512], [256, 256]]
    outline = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [square]}, "properties": {}}
    (drawn / "slide-0.geojson").write_text(json.dumps(outline))
    (drawn / "slide-1.geojson").write_text(json.dumps(outline)[:50])
    arguments = ["extract", slides, "--out", out, "--encoder", ENCODER, "--workers", 0, "--tissue", drawn]
    arguments += ["--tile-um", 64, "--tile-px", 64]
    done = asmil_here(*arguments)
    assert done.returncode == 1
    assert "slide-1.geojson" in done.stderr
    assert "slide-2.geojson" in done.stderr
    assert [path.name for path in out.glob("*.h5")] == ["slide-0.h5"]
    info = inspect_features(FeatureSource(out / "slide-0.h5"))
    assert info.n_tiles == 16
    source = json.loads(info.extraction)["tissue"]["source"]
    assert (source["file"], len(source["content"]["checksum"])) == ("slide-0.geojson", 64)
    assert source["removed_share"] == pytest.approx(source["automatic_share"] - 1 / 16, abs=0.005)
    (drawn / "slide-0.geojson").write_text(json.dumps(outline).replace("512", "384"))
    refused = asmil_here(*arguments)
    assert "tissue file" in refused.stderr
    asmil_here(*arguments, "--again")
    assert inspect_features(FeatureSource(out / "slide-0.h5")).n_tiles == 4
    missing = asmil_here(*arguments[:-6], "--tissue", tmp_path / "nowhere")
    assert missing.returncode == 1
    assert "nowhere" in missing.stderr


def test_blurred_tiles_are_stored_and_can_be_left_out(tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    slides, pixels = make(tmp_path / "slides" / "a.tif").parent, texture(1024)
    pixels[:, :512] = cv2.GaussianBlur(pixels[:, :512], (0, 0), 6.0)
    write_pyramid(slides / "a.tif", pixels, 1.0, quality=95)
    write_pyramid(slides / "b.tif", np.ascontiguousarray(pixels[:, :512]), 1.0, quality=95)
    settings = ["--encoder", ENCODER, "--workers", 0, "--tile-um", 128, "--tile-px", 128, "--tissue", "none"]
    done = asmil_here("extract", slides, "--out", tmp_path / "all", *settings)
    assert done.returncode == 0
    assert "blurred" in done.stderr
    with h5py.File(tmp_path / "all" / "a.h5") as file:
        focus, columns = file["quality/focus"][:], file["coords"][:, 0]
        assert len(file["quality/fold"]) == len(focus) == 64
        assert json.loads(file.attrs["extraction"])["artifacts"] == {"blurred": 32, "folded": 0, "left_out": 0}
    assert ((focus < 0.0625) == (columns < 512)).all()
    left = asmil_here("extract", slides, "--out", tmp_path / "some", *settings, "--leave-out", "blurred,folded")
    assert left.returncode == 1
    assert "b: no tile is left: 32 are blurred" in left.stderr
    kept = stored(tmp_path / "some" / "a.h5")
    assert len(kept) == 32
    assert (kept.coords[:, 0] >= 512).all()
    wrong = asmil_here("extract", slides, "--out", tmp_path / "some", *settings, "--leave-out", "blured")
    assert "leave_out" in wrong.stderr


def test_pictures_have_no_effect_on_the_quality(tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    slides, pixels = make(tmp_path / "slides" / "a.tif").parent, texture(1024)
    pixels[100:160, 100:900] = np.clip(pixels[100:160, 100:900].astype(int) - [90, 130, 40], 0, 255)
    write_pyramid(slides / "a.tif", pixels, 1.0, quality=95)
    settings = ["--encoder", ENCODER, "--workers", 0, "--tile-um", 128, "--tile-px", 128, "--tissue", "none"]
    folds = []
    for name, options in (("with", []), ("without", ["--no-qc"])):
        assert asmil_here("extract", slides, "--out", tmp_path / name, *settings, *options).returncode == 0
        with h5py.File(tmp_path / name / "a.h5") as file:
            folds.append(file["quality/fold"][:])
    assert folds[0].max() > 0
    assert (folds[0] == folds[1]).all()


def test_folders_of_earlier_versions_are_continued(tmp_path):
    slides, out = tmp_path / "slides", tmp_path / "features"
    write_slides(slides, 2)
    run(slides, out)
    note = out / "extraction.yaml"
    earlier = {key: value for key, value in yaml.safe_load(note.read_text()).items() if key not in ADDED}
    note.write_text(yaml.safe_dump(earlier))
    with h5py.File(out / "slide-0.h5", "a") as file:
        about = json.loads(file.attrs["extraction"])
        about["settings"] = {key: value for key, value in about["settings"].items() if key not in ADDED}
        file.attrs["extraction"] = json.dumps(about)
        del file["quality"]
    assert run(slides, out)["slide-0"].before
    with pytest.raises(AsmilError, match="leave_out"):
        run(slides, out, plan_for(leave_out=["blurred"]))


def test_a_40x_and_a_20x_scan_of_one_slide_give_the_same_features(tmp_path):
    fine = cv2.GaussianBlur(tissue_pixels(2048), (0, 0), 1.5)
    coarse = cv2.resize(fine, (1024, 1024), interpolation=cv2.INTER_AREA)
    write_pyramid(make(tmp_path / "slides" / "fine.tif"), fine, 0.5, quality=95)
    write_pyramid(tmp_path / "slides" / "coarse.tif", coarse, 1.0, quality=95)
    run(tmp_path / "slides", tmp_path / "features")
    fine_bag, coarse_bag = (stored(tmp_path / "features" / f"{name}.h5") for name in ("fine", "coarse"))
    places = {tuple(place): row for row, place in enumerate((fine_bag.coords // 2).tolist())}
    shared = [
        (row, places[tuple(place)]) for row, place in enumerate(coarse_bag.coords.tolist()) if tuple(place) in places
    ]
    assert len(shared) > 0.97 * max(len(fine_bag), len(coarse_bag))
    ours, theirs = zip(*shared, strict=True)
    np.testing.assert_allclose(coarse_bag.features[list(ours)], fine_bag.features[list(theirs)], atol=0.01)


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def with_damaged_tile(slide: Path) -> bytes:
    """The slide with zeros in place of the JPEG tile whose corner is at (256, 256)."""
    content = bytearray(slide.read_bytes())
    with tifffile.TiffFile(slide) as file:
        page = file.pages[0]
        columns = -(-page.imagewidth // page.tilewidth)
        start, length = page.dataoffsets[columns + 1], page.databytecounts[columns + 1]
    content[start : start + length] = bytes(length)
    return bytes(content)


def test_bad_slides_are_named_and_the_others_done(tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    slides, out = tmp_path / "slides", tmp_path / "features"
    good = write_slide(slides / "good.tif", side_px=700)
    (slides / "text.svs").write_text("not a slide")
    (slides / "empty.tif").write_bytes(b"")
    (slides / "truncated.tif").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    write_pyramid(slides / "blank.tif", np.full((700, 700, 3), WHITE, np.uint8), 1.0)
    write_pyramid(slides / "coarse.tif", tissue_pixels(300), 8.0)
    tifffile.imwrite(slides / "no_mpp.tif", tissue_pixels(700), photometric="rgb")
    (slides / "damaged.tif").write_bytes(with_damaged_tile(good))
    arguments = ("extract", slides, "--out", out, "--encoder", ENCODER, "--workers", 0)
    done = asmil_here(*arguments)
    assert done.returncode == 1
    assert (out / "good.h5").exists()
    table = done.stderr[done.stderr.index("error") :]
    named = {line.split("  - ")[1] for line in table.splitlines() if line.startswith("  - ")}
    for name, why in {
        "text": "slide",
        "empty": "",
        "truncated": "",
        "blank": "tissue",
        "coarse": "coarser",
        "no_mpp": "--mpp",
        "damaged": "cannot be read",
    }.items():
        assert any(name in line and why in line for line in named), (name, named)
    assert "Traceback" not in done.stderr
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    for path in slides.iterdir():
        if not (out / f"{path.stem}.h5").exists():
            path.unlink()
    write_slide(slides / "late.tif", side_px=700, seed=4)
    again = asmil_here(*arguments)
    assert again.returncode == 0, again.stderr
    assert "1 slide extracted" in again.stdout
    assert f"({len(before)} " in again.stdout
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before


def test_no_name_of_a_table_writes_outside_the_folder(tmp_path, asmil_here, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    write_slide(tmp_path / "a.tif", side_px=700)
    for name in ("../../escaped", str(tmp_path / "escaped")):
        (tmp_path / "table.csv").write_text(f"slide,image\n{name},a.tif\n")
        before = sorted(tmp_path.rglob("*"))
        for verb, *options in (["extract", "--encoder", ENCODER, "--workers", 0], ["tissue"]):
            done = asmil_here(verb, tmp_path / "table.csv", "--out", tmp_path / "x" / "y", *options)
            assert done.returncode == 1
            assert "escaped" in done.stderr
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(AsmilError, match="escaped"):
        FeatureFolder(tmp_path).features("../escaped", plan_for().config)
    with pytest.raises(AsmilError, match="escaped"):
        SurveyFolder(tmp_path).mask("../escaped")


def test_tiles_of_low_magnification_are_means_of_the_tiles(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif")
    run(tmp_path / "slides", tmp_path / "features", plan_for(lowres=1.25))
    bag = stored(tmp_path / "features" / "a.h5")
    small = bag.extras["lowres"]["tiles"]
    assert tuple(small.shape) == (len(bag), 8, 8, 3)
    np.testing.assert_allclose(small.float().mean(dim=(1, 2)) / 255, bag.features[:, :3].float(), atol=0.01)


def test_white_and_black_tiles_are_dropped_when_asked(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif")
    everything = {"method": "none"}
    run(tmp_path / "slides", tmp_path / "all", plan_for(tissue=everything))
    run(tmp_path / "slides", tmp_path / "some", plan_for(tissue=everything, tiling={**TILING, "white": 20.0}))
    all_tiles, some = stored(tmp_path / "all" / "a.h5"), stored(tmp_path / "some" / "a.h5")
    assert len(all_tiles) == 256
    assert 60 < len(some) < 160
    told = run(tmp_path / "slides", tmp_path / "none", plan_for(tissue=everything, tiling={**TILING, "black": 255.0}))
    assert "white or black" in told["a"].error


def test_features_beyond_float16_are_refused_and_kept_as_float32(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif", side_px=640)
    large = "tiny_encoder:Large"
    told = run(tmp_path / "slides", tmp_path / "half", plan_for(large))["a"].error
    assert "dtype=float32" in told
    assert run(tmp_path / "slides", tmp_path / "whole", plan_for(large, dtype="float32"))["a"].error is None
    assert float(stored(tmp_path / "whole" / "a.h5").features.max()) > 1e5


def test_one_tile_is_a_bag(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif", side_px=64)
    plan = plan_for(tissue={"method": "none"})
    assert run(tmp_path / "slides", tmp_path / "features", plan)["a"].report.n_tiles == 1
    assert len(stored(tmp_path / "features" / "a.h5")) == 1


def test_clam_preset_cuts_grids_of_its_own(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif", pieces=2)
    plan = plan_for(
        tissue={"method": "clam", "clam": {"preset": "tcga", "a_t": 0.1, "level": 0}},
    )
    run(tmp_path / "slides", tmp_path / "features", plan)
    coords = stored(tmp_path / "features" / "a.h5").coords.numpy()
    assert len({tuple(corner) for corner in coords % 64}) == 2


def test_weights_of_another_machine_are_refused(tmp_path, monkeypatch):
    write_slide(tmp_path / "slides" / "a.tif")
    plan = plan_for("tiny_encoder:Weighted")
    monkeypatch.setenv("TINY_WEIGHT", "2")
    with pytest.raises(AsmilError, match="same file"):
        run(tmp_path / "slides", tmp_path / "features", plan)


def test_leftovers_of_killed_writers_go_and_those_at_work_stay(tmp_path):
    write_slide(tmp_path / "slides" / "a.tif", side_px=300)
    out = tmp_path / "features"
    out.mkdir()
    old, young = out / ".a.h5.01234567.partial", out / ".b.h5.89abcdef.partial"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1, 1))
    run(tmp_path / "slides", out)
    assert not old.exists()
    assert young.exists()


def test_a_tile_that_cannot_be_read_is_named_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr("asmil.extraction.worker.PICTURE_SIDE_PX", 128)  # the overview then reads another level
    good = write_slide(tmp_path / "good.tif", side_px=1024)
    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / "damaged.tif").write_bytes(with_damaged_tile(good))
    done = extract(find_slides(tmp_path / "slides"), tmp_path / "features", plan_for(), InlineEngine(), pictures=False)
    (result,) = done
    place = re.search(r"damaged\.tif: .*\((\d+), (\d+)\)", result.error)
    assert place is not None, result.error
    assert all(192 <= int(at) < 512 for at in place.groups()), result.error
    assert not (tmp_path / "features" / "damaged.h5").exists()
