"""Oracle files of localization: the shared one, one of our own, and what happens when numbers differ."""

from __future__ import annotations

import copy
import json

import pytest

from oracles.__main__ import check_file
from oracles.sheet import withhold
from oracles.sheets import froc, recognize
from shared_data import ORACLES, read_oracle

SQUARE = [[row, 10, 40] for row in range(10, 50)]


@pytest.fixture
def content():
    """A set with a name of its own, without parameters, with numbers found by hand."""
    tumor = {"name": "t", "type": "tumor", "height": 64, "width": 70, "mask_rle": SQUARE}
    tumor |= {"detections": [[0.5, 640, 640], [0.25, 2200, 40]], "n_raw_components": 1, "itc_labels": []}
    tumor["expected_round"] = {"fp": [0.25], "tp": [0.5], "n_lesions": 1}
    normal = {"name": "n", "type": "normal", "detections": [[0.75, 3, 3]]}
    normal["expected_floor"] = {"fp": [0.75], "tp": [], "n_lesions": 0}
    curve = {"avg_fp": [1.0, 0.5, 0.5, 0.0], "sensitivity": [1.0, 1.0, 0.0, 0.0]}
    up = {"sensitivities": [0.0, 0.0, 1.0, 1.0, 1.0, 1.0], "score": 4 / 6}
    own = {"slides": [tumor, normal], "n_lesions": 1, "n_slides": 2, "release": {"curve": curve, "bisect_up": up}}
    nothing = {
        "slides": [normal],
        "challenge_2016": {"linear": {"score": None}},
        "release": {"linear": {"score": None}},
    }
    tiles = {"coords": [[0, 0], [256, 0], [512, 0]], "attention": [0.1, 0.3, 0.6], "scaled": [0.0, 0.4, 1.0]}
    tiles |= {"name": "x", "type": "tumor", "height": 8, "width": 24, "mask_rle": [[0, 12, 8]], "dice": 8 / 72}
    # the positive tile is the last one, which MS-CLAM does not draw
    tiles |= {"dice_msclam": 0.0, "regions_found": [True], "tile_dice_any_overlap": 2 / 3}
    maps = [{"map_xy": [[0.9, 0.8], [0.1, 0.6]], "level": 6, "radius_cells": 1, "stop_at_or_below": 0.5}]
    maps[0]["detections"] = [[0.9, 32, 32], [0.8, 32, 96], [0.6, 96, 96]]
    return {"own": own, "nothing": nothing, "tiles": {"slides": [tiles], "mean_dice": 8 / 72}, "maps": maps}


def verdict(folder, content):
    path = folder / "file.json"
    path.write_text(json.dumps(content))
    return check_file(path)


def test_the_shared_file_agrees() -> None:
    found = check_file(ORACLES / "froc.json")
    assert found.passed, found.details
    assert found.absolute < 1e-9


def test_a_file_of_our_own_agrees(tmp_path, content) -> None:
    found = verdict(tmp_path, content)
    assert found.passed, found.details
    assert found.method == "froc"
    assert "3 points" in found.details


def test_differing_numbers_are_named(tmp_path, content) -> None:
    content["own"]["slides"][0]["expected_round"]["tp"] = [0.25]
    content["own"]["release"]["bisect_up"]["score"] = 0.5
    content["nothing"]["release"]["linear"]["score"] = 0.0
    details = verdict(tmp_path, content).details
    assert "own.slides[t].expected_round.tp" in details
    assert "own.release.bisect_up.score" in details
    assert "nothing.release.linear.score" in details


def test_a_differing_point_of_a_tile_map_fails_the_file(tmp_path, content) -> None:
    content["maps"][0]["detections"][1][2] = 160
    found = verdict(tmp_path, content)
    assert not found.passed
    assert "maps[0].detections" in found.details


def test_the_answers_do_not_look_at_the_official_numbers(content) -> None:
    changed = copy.deepcopy(content)
    changed["maps"][0]["detections"] = []
    changed["own"]["release"]["curve"] = {"avg_fp": [], "sensitivity": []}
    changed["tiles"]["slides"][0]["scaled"] = [3, 2, 1]
    sheets = [froc.answer(withhold(part, froc.GIVEN)) for part in (content, changed)]
    assert json.dumps(sheets[0]) == json.dumps(sheets[1])
    assert withhold(content, froc.GIVEN)["own"]["release"]["curve"] == {"avg_fp": None, "sensitivity": None}


def test_the_shared_file_needs_no_parameters(tmp_path) -> None:
    content = read_oracle("froc")
    content.pop("parameters", None)
    assert verdict(tmp_path, content).passed


def test_undefined_curves_are_lists_of_null(tmp_path, content) -> None:
    dot = content["own"]["slides"][0] | {"mask_rle": [[10, 10, 2]], "detections": [[0.5, 2000, 40]]}
    asked = {
        key: value for key, value in dot.items() if key not in ("itc_labels", "expected_round", "n_raw_components")
    }
    nothing = {"sensitivities": [None] * 6, "score": None}
    only_itc = {"slides": [asked | {"itc_labels": [1]}], "n_lesions": 0}
    only_itc["release"] = {"curve": {"avg_fp": [1.0, 0.0], "sensitivity": [None, None]}, "bisect_up": nothing}
    only_itc["fp_on_normal_only"] = {"curve": {"avg_fp": [None], "sensitivity": [None]}, "linear": nothing}
    found = verdict(tmp_path, {"only_itc": only_itc})
    assert found.passed, found.details


def test_names_and_settings_of_maps_may_be_missing(tmp_path, content) -> None:
    for row in content["own"]["slides"] + content["nothing"]["slides"]:
        row.pop("name", None)
    content["maps"] = [{"map_xy": [[0.9, 0.8], [0.5, 0.6]], "detections": [[0.9, 128, 128]]}]
    found = verdict(tmp_path, content)
    assert found.passed, found.details


def test_other_files_are_not_taken() -> None:
    assert recognize({"slides": [{"name": "a"}]}) is None
    assert not froc.recognizes({"tiles": {"slides": []}, "maps": []})
