"""Sizes of tiles, and what is refused before any slide is opened."""

import re

import pytest

from asmil.errors import AsmilError
from asmil.extraction.extract import shard, with_mpp
from asmil.extraction.machine import ExtractionMachine
from asmil.extraction.settings import ExtractionConfig, parse_extraction, tile_size
from asmil.settings.config import flat
from asmil.slides.discovery import SlideFile
from asmil.slides.encoders.registry import find_encoder
from shared_data import REPOSITORY

ENTRY = find_encoder("efficientnet_lite0")


@pytest.mark.parametrize(
    ("given", "tile_um", "tile_px"),
    [
        ({}, 128, 256),
        ({"tile_um": 256}, 256, 256),
        ({"tile_px": 512}, 256, 512),
        ({"magnification": 20}, 128, 256),
        ({"magnification": 10}, 256, 256),
        ({"magnification": 40, "tile_um": 128}, 128, 512),
        ({"magnification": 5, "tile_px": 224}, 448, 224),
        ({"magnification": 20, "tile_px": 256, "tile_um": 128}, 128, 256),
    ],
)
def test_two_of_microns_pixels_and_magnification_give_the_third(given, tile_um, tile_px):
    assert tile_size(ENTRY, **given) == {"tile_um": tile_um, "tile_px": tile_px}


def test_contradicting_sizes_are_refused():
    with pytest.raises(AsmilError, match=r"128 um .*256 px .*0\.5 um/px.*magnification 10"):
        tile_size(ENTRY, tile_um=128, tile_px=256, magnification=10)
    with pytest.raises(AsmilError, match="magnification -2"):
        tile_size(ENTRY, magnification=-2)


def test_low_magnification_tiles_have_sixteen_pixels_at_1_25():
    assert parse_extraction({"lowres": 1.25}).lowres_px == 16
    with pytest.raises(AsmilError, match="smaller"):
        parse_extraction({"lowres": 20})


def test_unknown_settings_are_answered_with_the_nearest():
    with pytest.raises(AsmilError, match=r"tiling\.overlapp.*'overlap'"):
        parse_extraction({"tiling": {"overlapp": 0.5}})


def test_every_slide_is_in_exactly_one_shard():
    slides = [SlideFile(f"s{number}", REPOSITORY) for number in range(11)]
    parts = [shard(slides, f"{part}/4") for part in range(1, 5)]
    assert sorted(slide.name for part in parts for slide in part) == sorted(slide.name for slide in slides)
    assert shard(slides, None) == slides
    for wrong in ("0/4", "5/4", "x/4", "3", "3/0"):
        with pytest.raises(AsmilError, match="third of sixteen"):
            shard(slides, wrong)


def test_the_users_resolution_is_for_slides_whose_table_gives_none():
    slides = [SlideFile("a", REPOSITORY, 0.25), SlideFile("b", REPOSITORY)]
    assert [slide.mpp for slide in with_mpp(slides, 0.5)] == [0.25, 0.5]
    assert [slide.mpp for slide in with_mpp(slides, None)] == [0.25, None]
    with pytest.raises(AsmilError, match="--mpp 0"):
        with_mpp(slides, 0)


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        (ExtractionMachine(engine="rai"), "'ray'"),
        (ExtractionMachine(address="auto"), "--engine ray"),
        (ExtractionMachine(engine="ray", workers=0), "worker"),
        (ExtractionMachine(device="cuda:93"), "cuda:93"),
        (ExtractionMachine(device="toaster"), "toaster"),
    ],
)
def test_engines_that_make_no_sense_are_refused(machine, told):
    with pytest.raises(AsmilError, match=told):
        machine.prepare(3)


def test_there_are_never_more_processes_than_slides():
    engine, readers = ExtractionMachine(device="cpu", workers=5).prepare(2)
    assert (engine.workers, readers >= 1) == (2, True)


def test_documented_settings_are_the_ones_there_are():
    page = (REPOSITORY / "docs" / "extract.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE))
    defaults = flat(ExtractionConfig().model_dump())
    expected = {key: str(value) for key, value in defaults.items() if not key.startswith("tissue.")}
    assert rows == expected
