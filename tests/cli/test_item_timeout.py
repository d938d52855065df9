"""`--item-timeout`: an item whose reading hangs is named, and the others are done."""

import csv
from pathlib import Path

import pytest

from asmil.cohort.inspection import inspect_slides
from asmil.cohort.manifest import cohort_from_features
from asmil.errors import AsmilError
from feature_writers import grid, tiles, write_trident
from small_slides import write_slides

SHORT_S = 6
EXTRACTION = Path(__file__).parents[1] / "extraction"
HANGING = """
import pathlib, re

true_open = pathlib.Path.open

def hanging_open(self, *arguments, **options):
    if self.name in ("slide-1.tif", "b.h5"):
        re.match(r"(a+)+b", "a" * 60)  # for ever, inside a library that holds on to the interpreter
    return true_open(self, *arguments, **options)

pathlib.Path.open = hanging_open
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one of the files hangs in every process that is started from now on."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HANGING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{EXTRACTION}")


@pytest.fixture
def slides(tmp_path: Path, hanging: None) -> Path:
    """Three slides, of which the second hangs."""
    write_slides(tmp_path / "slides", 3, side_px=512)
    return tmp_path / "slides"


@pytest.fixture
def features(tmp_path: Path, hanging: None) -> Path:
    """Four feature files, of which b hangs, and a manifest beside their folder."""
    for seed, name in enumerate("abcd"):
        write_trident(tmp_path / "features" / f"{name}.h5", tiles(seed), grid())
    rows = [("slide", "label"), ("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")]
    with (tmp_path / "cohort.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path / "features"


@pytest.mark.heavy
def test_extract_names_a_slide_that_hangs_and_does_the_others(asmil_here, slides: Path, tmp_path: Path):
    done = asmil_here(
        "extract", slides, "--out", tmp_path / "out", "--encoder", "tiny_encoder:ColorMoments", "--device", "cpu",
        "--workers", 1, "--item-timeout", SHORT_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert sorted(path.name for path in (tmp_path / "out").glob("*.h5")) == ["slide-0.h5", "slide-2.h5"]
    assert "1 of 3" in done.stderr
    assert "slide-1: " in done.stderr
    assert "--item-timeout" in done.stderr


@pytest.mark.heavy
def test_tissue_names_a_slide_that_hangs_and_does_the_others(asmil_here, slides: Path, tmp_path: Path):
    done = asmil_here("tissue", slides, "--out", tmp_path / "out", "--workers", 1, "--item-timeout", SHORT_S)
    assert done.returncode == 1
    assert "slide-1: " in done.stdout
    assert sorted(path.stem for path in (tmp_path / "out" / "masks").iterdir()) == ["slide-0", "slide-2"]


@pytest.mark.heavy
def test_check_names_a_file_that_hangs(asmil_here, features: Path, tmp_path: Path):
    done = asmil_here("check", tmp_path / "cohort.csv", "--features", features, "--item-timeout", 4)
    assert done.returncode == 1
    assert "b.h5" in done.stdout
    assert "--item-timeout" in done.stdout
    assert "c.h5" not in done.stdout


@pytest.mark.heavy
def test_pack_names_a_file_that_hangs(asmil_here, features: Path, tmp_path: Path):
    done = asmil_here("pack", features, "--out", tmp_path / "pack", "--item-timeout", 4)
    assert done.returncode == 1
    assert "3 packed" in done.stdout
    assert "b.h5" in done.stderr


def test_the_errors_of_other_files_are_as_without_a_limit(features: Path):
    (features / "c.h5").write_bytes(b"nothing of use")
    slides = [slide for slide in cohort_from_features(features).slides if slide.slide != "b"]
    limited = dict(inspect_slides(slides, deep=True, item_timeout_s=60.0))
    unlimited = dict(inspect_slides(slides, deep=True))
    assert limited.keys() == unlimited.keys()
    for slide, found in unlimited.items():
        if isinstance(found, AsmilError):
            assert slide.slide == "c"
            assert str(limited[slide]) == str(found)
        else:
            assert limited[slide] == found


def test_work_in_this_process_cannot_have_a_limit(asmil_here, slides: Path, tmp_path: Path):
    done = asmil_here("extract", slides, "--out", tmp_path / "out", "--workers", 0, "--item-timeout", 5)
    assert done.returncode == 1
    assert "--item-timeout" in done.stderr
    assert not (tmp_path / "out").exists()
