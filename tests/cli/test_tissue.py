"""`asmil tissue`: files, table and contact sheet of a folder of slides; going on; mistakes."""

from __future__ import annotations

import csv
import json
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from array_slide import ellipse, glass
from asmil.engine import InlineEngine
from asmil.slides.discovery import find_slides
from asmil.slides.qc import read_picture
from asmil.slides.survey import SurveyConfig, SurveyFolder, survey_slides
from tiff_writers import write_slide


@pytest.fixture
def slides(tmp_path: Path) -> Path:
    folder = tmp_path / "slides"
    folder.mkdir()
    for name, mpp, axes in (("a & b #1", 2.0, (400, 300)), ("blank", 2.0, None), ("unknown", None, (300, 200))):
        pixels = glass(1200, 1000)  # large enough that the pictures are smaller
        if axes is not None:
            ellipse(pixels, (600, 500), axes)
        write_slide(folder / f"{name}.tif", pixels, mpp=mpp)
    return folder


def table(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "tissue.csv").open(encoding="utf-8", newline="") as file:
        return {row["slide"]: row for row in csv.DictReader(file)}


class Links(HTMLParser):
    """Where the pictures and links of a page point."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for key, value in attrs if key in ("href", "src") and value]


def test_files_of_every_slide(asmil_here, slides: Path, tmp_path: Path) -> None:
    out = tmp_path / "qc"
    done = asmil_here("tissue", slides, "--out", out, "--tile-um", 256, "--tile-px", 128, "--workers", 2)
    assert done.returncode == 0, done.stderr
    rows = table(out)
    assert list(rows) == ["a & b #1", "blank", "unknown"]
    full = rows["a & b #1"]
    assert (full["width_px"], full["height_px"], full["mpp"], full["method"]) == ("1200", "1000", "2.0", "auto")
    assert float(full["tissue_mm2"]) == pytest.approx(3.1416 * 400 * 300 * 4 / 1e6, rel=0.03)
    assert int(full["tiles"]) > 20
    assert full["notes"] == ""
    assert rows["blank"]["notes"] == "no tissue found"
    assert rows["blank"]["tiles"] == "0"
    assert (rows["unknown"]["tissue_mm2"], rows["unknown"]["tiles"]) == ("", "")
    assert "no resolution" in rows["unknown"]["notes"]
    assert "no resolution" in done.stdout
    for name in rows:
        assert read_picture(out / "masks" / f"{name}.png").shape[2] == 3
        assert read_picture(out / "thumbnails" / f"{name}.jpg").shape == (853, 1024, 3)
        assert read_picture(out / "overlays" / f"{name}.jpg").shape == (853, 1024, 3)
        contours = json.loads((out / "contours" / f"{name}.geojson").read_text())
        assert len(contours["features"]) == int(rows[name]["regions"])
    page = (out / "contact_sheet.html").read_text(encoding="utf-8")
    assert "a &amp; b #1" in page
    targets = Links(page).targets
    assert len(targets) == 6
    assert all((out / unquote(target)).is_file() for target in targets)
    assert read_picture(out / "contact_sheet.jpg").size


def test_given_resolution_counts_tiles_everywhere(asmil_here, slides: Path, tmp_path: Path) -> None:
    done = asmil_here("tissue", slides / "unknown.tif", "--out", tmp_path / "qc", "--mpp", 1, "--tile-um", 256)
    assert done.returncode == 0
    row = table(tmp_path / "qc")["unknown"]
    assert (row["mpp"], row["mpp_source"], row["notes"]) == ("1.0", "given", "")
    assert int(row["tiles"]) > 0


def test_the_largest_piece_that_was_too_small_is_told(asmil_here, slides: Path, tmp_path: Path) -> None:
    choice = "tissue.min_area_um2=10_000_000"
    asmil_here("tissue", slides / "a & b #1.tif", "--out", tmp_path / "qc", "--set", choice)
    assert "no tissue" in table(tmp_path / "qc")["a & b #1"]["notes"]


def test_slides_coarser_than_the_tiles_are_noted(asmil_here, slides: Path, tmp_path: Path) -> None:
    done = asmil_here("tissue", slides / "blank.tif", "--out", tmp_path / "qc")
    assert done.returncode == 0
    assert "blank" in table(tmp_path / "qc")["blank"]["notes"]


def test_goes_on_where_it_stopped(asmil_here, slides: Path, tmp_path: Path) -> None:
    out = tmp_path / "qc"
    asmil_here("tissue", slides, "--out", out)
    before = {path: path.stat().st_mtime_ns for path in sorted(out.glob("*/*"))}
    lost = out / "masks" / "blank.png"
    lost.unlink()
    done = asmil_here("tissue", slides, "--out", out)
    assert done.returncode == 0
    assert "3 slides done (2 " in done.stdout
    again = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert {path.stem for path in again} == {"blank"}
    assert lost.is_file()


def test_other_settings_are_refused(asmil_here, slides: Path, tmp_path: Path) -> None:
    out = tmp_path / "qc"
    asmil_here("tissue", slides, "--out", out)
    done = asmil_here("tissue", slides, "--out", out, "--set", "tissue.min_area_um2=1000")
    assert done.returncode == 1
    assert "tissue.min_area_um2: there 50000.0" in done.stderr
    done = asmil_here("tissue", slides, "--out", out, "--preset", "tcga")
    assert done.returncode == 1
    assert "tissue.method" in done.stderr


def test_a_bad_slide_is_listed_and_the_rest_done(asmil_here, slides: Path, tmp_path: Path) -> None:
    (slides / "torn.svs").write_bytes(b"II*\0 and nothing of use")
    out = tmp_path / "qc"
    done = asmil_here("tissue", slides, "--out", out)
    assert done.returncode == 1
    assert "torn.svs" in done.stdout
    assert "Traceback" not in done.stderr
    assert list(table(out)) == ["a & b #1", "blank", "unknown"]
    assert "torn.svs" in (out / "contact_sheet.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", ["none", "clam"])
def test_other_methods(asmil_here, slides: Path, tmp_path: Path, method: str) -> None:
    out = tmp_path / "qc"
    done = asmil_here(
        "tissue", slides / "a & b #1.tif", "--out", out, "--method", method, "--set", "tissue.clam.a_t=0.1",
        "--set", "tiling.tile_um=512", "--set", "tiling.min_tissue=0.5",
    )  # fmt: skip
    assert done.returncode == 0
    row = table(out)["a & b #1"]
    assert row["method"] == method
    assert int(row["tiles"]) > 0
    assert (float(row["tissue_share"]) == 1.0) == (method == "none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "otsu"], "tissue.method"),
        (["--method", "auto", "--preset", "tcga"], "--preset tcga"),
        (["--preset", "biopsy"], "tissue.clam.preset"),
        (["--set", "tissue.min_area=3"], "min_area_um2"),
        (["--mpp", "-1"], "mpp"),
    ],
)
def test_mistakes(asmil_here, slides: Path, tmp_path: Path, options: list[str], words: str) -> None:
    done = asmil_here("tissue", slides, "--out", tmp_path / "qc", *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert not (tmp_path / "qc").exists()


def test_blurred_and_folded_tiles_are_counted_and_drawn(asmil_here, slides: Path, tmp_path: Path) -> None:
    plain, out = tmp_path / "plain", tmp_path / "qc"
    asmil_here("tissue", slides / "a & b #1.tif", "--out", plain, "--tile-px", 64)
    done = asmil_here("tissue", slides / "a & b #1.tif", "--out", out, "--tile-px", 64, "--quality")
    assert done.returncode == 0, done.stderr
    counts = ("blurred", "folded")
    assert [table(plain)["a & b #1"][name] for name in counts] == ["", ""]
    blurred, folded = (int(table(out)["a & b #1"][name]) for name in counts)
    assert (blurred > 0, folded) == (True, 0)  # drawn tissue has an outline and no detail
    assert f"{blurred} blurred" in (out / "contact_sheet.html").read_text(encoding="utf-8")
    overlay, before = (read_picture(folder / "overlays" / "a & b #1.jpg").astype(int) for folder in (out, plain))
    assert (np.abs(overlay - before).max(axis=2) > 40).any()


def test_an_interruption_keeps_what_is_done(slides: Path, tmp_path: Path) -> None:
    folder = SurveyFolder(tmp_path / "qc")
    main = threading.get_ident()

    def interrupt(done: int, total: int) -> None:
        assert threading.get_ident() == main
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey_slides(find_slides(slides), folder, SurveyConfig(), InlineEngine(), progress=interrupt)
    kept = table(folder.path)
    assert 1 <= len(kept) <= 2
    assert all(folder.has_files(name) for name in kept)
    result = survey_slides(find_slides(slides), folder, SurveyConfig(), InlineEngine())
    assert result.already_done == len(kept)
    assert len(result.rows) == 3
