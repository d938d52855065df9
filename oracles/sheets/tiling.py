"""Tissue and tiles of a slide under CLAM's parameters: stages, contours, coordinates.

A case passes if the exact IoU of its coordinates is at least 0.98. Pixel counts, areas and shares may be off by 1e-3,
because OpenCV's vector and scalar code round the saturation of some pixels differently; the line that is printed says
how many cases agree to the last coordinate.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError, did_you_mean
from asmil.slides.clam_grid import clam_attributes, clam_coordinates
from asmil.slides.image import SlideImage
from asmil.slides.opening import open_slide
from asmil.slides.settings import ContourCheck
from asmil.slides.tiling import keep_tiles
from asmil.slides.tissue.clam import (
    REFERENCE_PX,
    ClamParameters,
    Segmentation,
    read_saturation,
    search_level,
    segment,
    tissue_of,
)
from asmil.slides.tissue.contours import polygon_area
from asmil.slides.tissue.regions import Tissue
from oracles.compare import Comparison
from oracles.overlap import Corners, area_iou, exact_iou
from oracles.sheet import Absent, Allowance, Content, Kind, is_rows

Row = Mapping[str, Any]

GIVEN = frozenset(
    {"slide", "slide_sha256", "made_with", "case", "preset", "seg_params", "filter_params", "patch_params"}
    | {"white_thresh", "black_thresh", "patch_size"}
)
SMALLEST_IOU = 0.98
PIXEL_ERROR = 1e-3
TILE_COUNTS = ("n_coords", "n_unique_coords", "n_kept")
MEASURED = (
    "saturation_median_sum",
    "foreground_px",
    "foreground_px_after_closing",
    "contour_area_level0",
    "hole_area_level0",
    "tissue_fraction",
)
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tiles:
    """The corners that we found, and the side and step that the case asked for, (x, y) in level-0 pixels."""

    corners: Corners
    side: tuple[int, int]
    step: tuple[int, int]


def recognizes(content: Content) -> bool:
    """Whether a slide is named, and cases with parameters of a segmentation."""
    cases = content.get("cases")
    return "slide" in content and is_rows(cases) and all("seg_params" in case for case in cases or ())


def locate(sheet: Content, folder: Path) -> dict[str, Path]:
    """The slide of a file: the one of its name and SHA-256 in the folders where slides are kept."""
    name, digest = str(sheet["slide"]), sheet.get("slide_sha256")
    folders = [REPOSITORY.parent / "shared" / "data" / "slides", folder.parent / "data" / "slides"]
    if "ASMIL_DATA" in os.environ:
        folders.insert(0, Path(os.environ["ASMIL_DATA"]) / "slides")
    found = [place / name for place in folders if (place / name).is_file()]
    for path in found:
        if digest is None or hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return {"path": path}
    if found:
        raise AsmilError(f"{found[0]}: it is not the slide that is meant, its SHA-256 is not {digest}; copy it again")
    raise Absent(f"the slide {name} is not there; set ASMIL_DATA to the folder that has slides/{name}")


def answer(sheet: Content) -> dict[str, Any]:
    """Everything that is asked of every case."""
    with open_slide(sheet["path"]) as image:
        read = cache(lambda level: read_saturation(image, level))

        @cache
        def segmented(level: int, parameters: ClamParameters) -> Segmentation:
            return segment(read(level), parameters)

        levels = {
            "level_dimensions": [list(size) for size in image.level_sizes],
            "level_downsamples": [list(factors) for factors in image.level_downsamples],
        }
        cases = []
        for case in sheet["cases"]:
            parameters, level = _parameters(case), _level(case, image)
            # the outlines do not depend on the filter, which would make each segmentation one of its own
            stages = segmented(level, _unfiltered(parameters))
            cases.append(_case(case, image, parameters, level, stages))
        return {"slide_info": dict.fromkeys(sheet.get("slide_info") or {}) | levels, "cases": cases}


def allowance(key: str, official: NDArray[np.float64], beside: Content) -> Allowance:
    """Numbers of tiles as the IoU allows, what is counted or measured on pixels to 1e-3, all else exactly."""
    scale = float(np.abs(official).max(initial=0.0))
    if key in TILE_COUNTS:
        return Allowance((1 - SMALLEST_IOU) * scale, scale)
    return Allowance(PIXEL_ERROR * scale if key in MEASURED else 0.0, max(scale, 1.0))


def judge(path: str, official: Any, ours: Any) -> Comparison | None:
    """Coordinates by their IoU, areas of holes contour by contour, remarks of a reader not at all."""
    if isinstance(ours, Tiles):
        lost = 1 - exact_iou(ours.corners, expand(official, ours.step[1]))
        passed = lost <= 1 - SMALLEST_IOU + 1e-12
        return Comparison(path, lost, 1.0, passed, "" if passed else f"IoU {1 - lost:.4f}")
    if path.endswith(".hole_area_level0"):
        return _judge_ragged(path, official, ours)
    if path.startswith("slide_info.") and ours is None:
        return Comparison(path, 0.0, 1.0, True)
    return None


def report(content: Content, answers: Content) -> str:
    """Exact and area IoU, the worst over all cases, and how many have the official SHA-256."""
    exact, area, same = [], [], 0
    for case, found in zip(content["cases"], answers["cases"], strict=True):
        tiles: Tiles = found["coords"]
        official = expand(case.get("coords_runs", case.get("coords", [])), tiles.step[1])
        exact.append(exact_iou(tiles.corners, official))
        area.append(area_iou(tiles.corners, official, tiles.side))
        same += _digests(found) == _digests(case)
    return (
        f"{len(exact)} cases, worst IoU exact {min(exact):.4f} area {min(area):.4f}, "
        f"{same} of {len(exact)} with the same SHA-256"
    )


def expand(rows: Sequence[Sequence[int]], step_y: int) -> Corners:
    """Corners from rows of [x, y], or of [x, y, n] for n tiles below each other."""
    if len(rows) == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if len(rows[0]) == 2:
        return np.array(rows, dtype=np.int64)
    return np.array([(x, y + place * step_y) for x, y, count in rows for place in range(count)], dtype=np.int64)


def digest_of(corners: Corners) -> str:
    """SHA-256 of the corners as sorted lines "x,y"."""
    lines = "\n".join(f"{x},{y}" for x, y in sorted(map(tuple, corners.tolist())))
    return hashlib.sha256(lines.encode()).hexdigest()


def _digests(case: Row) -> list[str]:
    return [case["sha256_sorted"], *(row["sha256_sorted"] for row in case.get("white_black_filter", []))]


def _parameters(case: Row) -> ClamParameters:
    search, keep = case["seg_params"], case["filter_params"]
    for choice in ("keep_ids", "exclude_ids"):
        if search.get(choice) not in (None, [], "none"):
            raise AsmilError(
                f"case {case.get('case')}: {choice} chooses contours by their number, which is not done here"
            )
    return ClamParameters(
        sthresh=int(search["sthresh"]),
        mthresh=int(search["mthresh"]),
        close=int(search["close"]),
        otsu=bool(search.get("use_otsu", False)),
        a_t=float(keep["a_t"]),
        a_h=float(keep["a_h"]),
        max_n_holes=int(keep["max_n_holes"]),
        reference_px=int(keep.get("ref_patch_size", REFERENCE_PX)),
    )


def _unfiltered(parameters: ClamParameters) -> ClamParameters:
    return ClamParameters(
        parameters.sthresh, parameters.mthresh, parameters.close, 0, 0, 0, parameters.otsu, parameters.reference_px
    )


def _level(case: Row, image: SlideImage) -> int:
    level = case["seg_params"].get("seg_level")
    return search_level(image) if level is None or level < 0 else int(level)


def _case(case: Row, image: SlideImage, parameters: ClamParameters, level: int, stages: Segmentation) -> dict[str, Any]:
    downsample = image.level_downsamples[level]
    tissue = tissue_of(stages, parameters, downsample)
    tiles = _tiles(case["patch_params"], image, tissue)
    count = len(tiles.corners)
    patch_level, patch_px = int(case["patch_params"]["patch_level"]), int(case["patch_params"]["patch_size"])
    boxes = [(*region.outline.min(axis=0), *np.ptp(region.outline, axis=0) + 1) for region in tissue.regions]
    return {
        "scaled_ref_patch_area": parameters.reference_area(downsample),
        "n_contours": len(tissue.regions),
        "n_holes": [len(region.holes) for region in tissue.regions],
        "contour_bounding_boxes_xywh": boxes,
        "contour_area_level0": [polygon_area(region.outline) for region in tissue.regions],
        "hole_area_level0": [[polygon_area(hole) for hole in region.holes] for region in tissue.regions],
        "tissue_fraction": tissue.share,
        "n_coords": count,
        "n_unique_coords": len(np.unique(tiles.corners, axis=0)),
        "sha256_sorted": digest_of(tiles.corners),
        "coords": tiles,
        "coords_runs": tiles,
        "stored_attrs": clam_attributes(image, patch_level, patch_px) if count else None,
        "stages": {
            "saturation_median_sum": int(stages.blurred.sum(dtype=np.int64)),
            "threshold_used": stages.threshold,
            "foreground_px": int(stages.foreground.sum(dtype=np.int64)),
            "foreground_px_after_closing": int(stages.closed.sum(dtype=np.int64)),
            "top_level_contours": len(stages.regions),
            "hole_contours": sum(len(region.holes) for region in stages.regions),
        },
        "white_black_filter": _filtered(case, image, tiles.corners, patch_level, patch_px),
    }


def _tiles(asked: Row, image: SlideImage, tissue: Tissue) -> Tiles:
    x, y = (int(factor) for factor in image.level_downsamples[int(asked["patch_level"])])
    patch, step = int(asked["patch_size"]), int(asked["step_size"])
    side, steps = (patch * x, patch * y), (step * x, step * y)
    check, padding = asked.get("contour_fn", "four_pt"), bool(asked.get("use_padding", True))
    if check not in get_args(ContourCheck):
        raise AsmilError(f"the contour_fn '{check}' is not known: {did_you_mean(check, get_args(ContourCheck))}")
    corners = clam_coordinates(tissue, image.size, side, steps, check, padding)
    return Tiles(corners, side, steps)


def _filtered(case: Row, image: SlideImage, corners: Corners, level: int, patch_px: int) -> list[dict[str, Any]]:
    asked = case.get("white_black_filter") or []
    kept: list[list[bool]] = []
    for x, y in corners.tolist() if asked else []:
        tile = image.read(x, y, level, patch_px, patch_px, outside=0)[None]
        kept.append([bool(keep_tiles(tile, row["white_thresh"], row["black_thresh"])[0]) for row in asked])
    flags = np.array(kept, dtype=np.bool_).reshape(len(corners), len(asked))
    return [{"n_kept": int(column.sum()), "sha256_sorted": digest_of(corners[column])} for column in flags.T]


def _judge_ragged(path: str, official: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> Comparison:
    if list(map(len, official)) != list(map(len, ours)):
        return Comparison(path, float("inf"), 1.0, False, f"{ours} instead of {official}")
    a, b = (np.array([area for areas in rows for area in areas]) for rows in (official, ours))
    error, scale = float(np.abs(a - b).max(initial=0.0)), float(np.abs(a).max(initial=0.0))
    passed = error <= PIXEL_ERROR * scale
    return Comparison(path, error, max(scale, 1.0), passed, "" if passed else f"off by {error:.2e}")


KIND = Kind("tiling", recognizes, GIVEN, answer, allowance, locate, judge, report)
