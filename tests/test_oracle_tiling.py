"""Oracle files of tissue and tiles: the slide is found, the cases are answered, and the IoU decides."""

import copy
import hashlib
import json

import cv2
import numpy as np
import pytest

from level_slide import pink_on_white
from oracles.__main__ import check_file
from oracles.overlap import area_iou, exact_iou
from oracles.sheet import withhold
from oracles.sheets import KINDS, recognize, tiling
from plain_clam import plain_contours, plain_coordinates
from shared_data import SHARED_DATA, oracle_files, read_oracle, shared_file


def drawn_slide():
    y, x = np.mgrid[:300, :400]
    away = np.hypot(x - 150, y - 150)
    mask = (away < 120) & (away > 25)
    mask[200:290, 300:390] = True
    return pink_on_white(mask)


def case_of(name, pixels, size=(400, 300), side=32, step=32, check="four_pt", padding=True, a_t=0.001):
    """A case whose official part comes from the plain form."""
    contours = plain_contours(pixels, (1.0, 1.0), a_t=a_t, a_h=0.001)
    found = plain_coordinates(contours, size, side, step, check, padding)
    lines = "\n".join(f"{x},{y}" for x, y in sorted(found))
    areas = [cv2.contourArea(outline) for outline, _ in contours]
    return {
        "case": name,
        "seg_params": {"seg_level": -1, "sthresh": 8, "sthresh_up": 255, "mthresh": 7, "close": 4, "use_otsu": False},
        "filter_params": {"a_t": a_t, "a_h": 0.001, "max_n_holes": 8, "ref_patch_size": 512},
        "patch_params": {"patch_level": 0, "patch_size": side, "step_size": step}
        | {"use_padding": padding, "contour_fn": check},
        "scaled_ref_patch_area": 512**2,
        "n_contours": len(contours),
        "n_holes": [len(holes) for _, holes in contours],
        "contour_area_level0": areas,
        "hole_area_level0": [[cv2.contourArea(hole) for hole in holes] for _, holes in contours],
        "n_coords": len(found),
        "sha256_sorted": hashlib.sha256(lines.encode()).hexdigest(),
        "coords_runs": [[x, y, 1] for x, y in found],
    }


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file of our own beside its slide: content, and a function that checks it."""
    monkeypatch.delenv("ASMIL_DATA", raising=False)
    pixels = drawn_slide()
    slide = tmp_path / "data" / "slides" / "drawn.png"
    slide.parent.mkdir(parents=True)
    cv2.imwrite(str(slide), pixels[:, :, ::-1])
    cases = [
        case_of("plain", pixels),
        case_of("hard", pixels, side=40, step=16, check="four_pt_hard", padding=False),
        case_of("nothing", pixels, a_t=100),
    ]
    digest = hashlib.sha256(slide.read_bytes()).hexdigest()
    content = {"slide": "drawn.png", "slide_sha256": digest, "cases": cases}
    content["slide_info"] = {"level_dimensions": [[400, 300]], "openslide.vendor": None, "openslide.mpp-x": "0.5"}

    def verdict(changed=None):
        path = tmp_path / "oracles" / "any.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(changed or content))
        return check_file(path)

    return content, verdict


def test_a_file_of_our_own_passes_and_tells_its_ious(own):
    _, verdict = own
    found = verdict()
    assert (found.passed, found.method) == (True, "tiling"), found.details
    for part in ("3 cases", "exact 1.0000", "area 1.0000", "3 of 3"):
        assert part in found.details


def test_tiles_may_be_listed_one_by_one(own):
    content, verdict = own
    for case in content["cases"]:
        case["coords"] = [row[:2] for row in case.pop("coords_runs")]
    assert verdict().passed
    content["cases"][0]["coords"][0][0] += 1
    assert "cases[plain].coords: IoU 0.9" in verdict().details


def test_the_iou_decides_and_is_told(own):
    content, verdict = own
    official = content["cases"][1]
    count = official["n_coords"]
    assert count > 100
    official["coords_runs"][0][1] += 1
    official["sha256_sorted"] = "0"
    near = verdict()
    assert near.passed, near.details
    assert f"worst IoU exact {(count - 1) / (count + 1):.4f} area 0.9" in near.details
    assert "2 of 3 " in near.details
    for row in official["coords_runs"]:
        row[0] += 1
    far = verdict()
    assert far.passed is False
    assert "cases[hard].coords_runs: IoU 0.00" in far.details


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("n_contours", lambda value: value + 1),
        ("n_holes", lambda value: [9, *value[1:]]),
        ("scaled_ref_patch_area", lambda value: value + 1),
        ("contour_area_level0", lambda value: [1.01 * area for area in value]),
        ("hole_area_level0", lambda value: [[1.01 * area for area in areas] for areas in value]),
        ("hole_area_level0", lambda value: value[::-1]),
        ("n_coords", lambda value: round(1.1 * value)),
    ],
)
def test_every_number_of_a_case_counts(own, key, change):
    content, verdict = own
    first = content["cases"][0]
    assert sorted(first["n_holes"]) == [0, 1]
    first[key] = change(first[key])
    found = verdict()
    assert found.passed is False
    assert f"cases[plain].{key}: " in found.details


def test_tissue_where_there_should_be_none_fails(own):
    content, verdict = own
    content["cases"][0] |= {"n_coords": 0, "coords_runs": []}
    found = verdict()
    assert "cases[plain].n_coords: off by" in found.details
    assert "worst IoU exact 0.0000" in found.details


def test_a_slide_that_is_missing_or_another_is_told(own):
    content, verdict = own
    missing = verdict(content | {"slide": "gone.svs"})
    assert missing.passed is None
    assert "slides/gone.svs" in missing.details
    other = verdict(content | {"slide_sha256": "0" * 64})
    assert other.passed is False
    assert "SHA-256 is not 000" in other.details


def test_parameters_that_are_not_known_are_told(own):
    content, verdict = own
    content["cases"][0]["patch_params"]["contour_fn"] = "four_pt_easy"
    assert "'four_pt_easy'" in verdict().details
    content["cases"][0]["seg_params"]["keep_ids"] = [0]
    assert "case plain: keep_ids " in verdict().details


def test_the_answers_are_found_without_the_official_numbers(own):
    content, _ = own
    changed = copy.deepcopy(content)
    for case in changed["cases"]:
        case["n_coords"], case["coords_runs"], case["hole_area_level0"] = 7, [[1, 2, 3]], [[5.0]]
    sheet = withhold(content, tiling.GIVEN)
    assert withhold(changed, tiling.GIVEN) == sheet
    asked = set(content["cases"][0]) - tiling.GIVEN
    assert {sheet["cases"][0][key] for key in asked} == {None}


def test_no_other_kind_knows_such_a_file(own):
    content, _ = own
    assert [kind.name for kind in KINDS if kind.recognizes(content)] == ["tiling"]
    assert recognize({"slide": "a.svs", "cases": [{"case": "a"}]}) is None
    assert recognize({"slide": "a.svs", "cases": []}) is None


def test_overlaps_of_tiles():
    a, moved = np.array([[0, 0], [10, 0]]), np.array([[5, 0], [15, 0]])
    assert exact_iou(a, a[::-1]) == area_iou(a, a[::-1], (10, 10)) == 1
    assert exact_iou(a, moved) == 0
    assert area_iou(a, moved, (10, 10)) == pytest.approx(15 / 25)
    assert area_iou(a, np.array([[0, 0], [0, 0], [5, 0], [10, 0]]), (10, 10)) == 1
    none = np.zeros((0, 2), dtype=np.int64)
    assert exact_iou(none, none) == area_iou(none, none, (10, 10)) == 1
    assert exact_iou(a, none) == area_iou(a, none, (10, 10)) == 0


@pytest.mark.parametrize("path", oracle_files("tiling_*.json"))
def test_official_files_agree_in_every_coordinate(path, tmp_path):
    """All cases; the filter by white and black, for which every tile is read, only where there are few."""
    content = json.loads(path.read_text())
    for case in content["cases"]:
        if case["n_coords"] > 100:
            case.pop("white_black_filter", None)
    shortened = tmp_path / path.name
    shortened.write_text(json.dumps(content))
    found = check_file(shortened)
    if found.passed is None:
        pytest.skip(found.details)
    assert found.passed, found.details
    count = len(content["cases"])
    for part in (f"{count} cases", "exact 1.0000", "area 1.0000", f"{count} of {count}"):
        assert part in found.details


def test_official_numbers_count(tmp_path):
    content = read_oracle("tiling_ndpi_dapi")
    shared_file(SHARED_DATA / "slides" / content["slide"])
    content["cases"] = content["cases"][2:3]
    content["cases"][0]["stages"]["foreground_px"] += 10
    content["cases"][0]["stored_attrs"]["downsample"][0] += 1e-3
    path = tmp_path / "one.json"
    path.write_text(json.dumps(content))
    details = check_file(path).details
    assert "stages.foreground_px: off by 1.00e+01" in details
    assert "stored_attrs.downsample: off by 1.00e-03" in details
