"""Localization: evaluation masks, hits, FROC curves and scores, maps of positive tiles, and tile maps made points.

A mapping whose slides have detections is a FROC set, one whose slides have tile coordinates a set of tile maps,
whatever their names. In rows of tile maps (`map_xy`) the key `detections` is an answer, though it is given elsewhere:
the points are found without reading it, and compared in the report, which fails the file if they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError
from asmil.evaluation.localization import (
    FP_TARGETS,
    PRESETS,
    EvaluationMask,
    FrocOptions,
    FrocSlide,
    SlideHits,
    all_tumor_tiles_positive,
    dice,
    evaluation_mask,
    froc_of_hits,
    highest_specificity,
    judge_detections,
    points_from_tiles,
    regions_found,
    scale_scores,
    specificity,
    tile_mask,
    tile_overlap,
    without_last_tiles,
)
from asmil.evaluation.localization.lesions import ITC_MAJOR_AXIS_UM, MARGIN_UM, label_regions
from oracles.compare import Comparison
from oracles.sheet import Allowance, Content, Kind, is_rows

Row = Mapping[str, Any]

GIVEN = frozenset(
    {"parameters", "name", "type", "detections", "height", "width", "mask_rle"}
    | {"threshold", "tile_size_level0", "mask_downsample", "coords", "attention"}
    | {"note", "map_xy", "radius_cells", "stop_at_or_below", "level"}
)
CONVENTIONS = {
    "challenge_2016": PRESETS["challenge2016"],
    "release": PRESETS["release"],
    "fp_on_normal_only": PRESETS["asmil_text"],
}
LARGEST_ERROR = 1e-9


def recognizes(content: Content) -> bool:
    """Whether there is a set of slides with detections, a set of slides with tiles, or a tile map."""
    return any(_is_froc_set(part) or _has_slides(part, "coords") or _is_maps(part) for part in content.values())


def answer(sheet: Content) -> dict[str, Any]:
    """All sets and maps of a file."""
    parameters = sheet.get("parameters") or {}
    answers: dict[str, Any] = {}
    for name, part in sheet.items():
        if _has_slides(part, "coords"):
            answers[name] = _tile_set(part)
        elif _is_froc_set(part):
            answers[name] = _froc_set(part["slides"], parameters)
        elif _is_maps(part):
            answers[name] = [{"detections": _points(row)} for row in part]
    return answers


def allowance(key: str, official: NDArray[np.float64], beside: Content) -> Allowance:
    """Counts and labels are whole numbers, so that an error of 1e-9 is none; all else to 1e-9."""
    del key, beside
    return Allowance(LARGEST_ERROR, max(1.0, float(np.abs(official[np.isfinite(official)]).max(initial=0.0))))


def judge(path: str, expected: Any, found: Any) -> Comparison | None:
    """What is undefined (nan, or left out as null) must be undefined here, and all beside it must be close."""
    if expected is None:
        undefined = found is None or bool(np.isnan(np.asarray(found, dtype=np.float64)).all())
        return Comparison(path, 0.0 if undefined else np.inf, 1.0, undefined, "" if undefined else f"{found}, not null")
    official = np.asarray(expected, dtype=np.float64)
    if not np.isnan(official).any():
        return None
    same = found is not None and np.shape(found) == official.shape
    same = same and np.allclose(official, np.asarray(found, dtype=np.float64), 0, LARGEST_ERROR, equal_nan=True)
    return Comparison(path, 0.0 if same else np.inf, 1.0, same, "" if same else f"{found} instead of {expected}")


def report(content: Content, answers: Content) -> str:
    """How many points of tile maps agree; a map that does not is a failure of the file."""
    points = 0
    for name, part in content.items():
        for place, row in enumerate(part if _is_maps(part) else ()):
            if "detections" not in row:
                continue
            official = np.asarray(row["detections"], dtype=np.float64).reshape(-1, 3)
            ours = np.asarray(answers[name][place]["detections"], dtype=np.float64).reshape(-1, 3)
            if official.shape != ours.shape or not np.allclose(official, ours, 0, LARGEST_ERROR):
                raise AsmilError(f"{name}[{place}].detections: {ours.tolist()} instead of {official.tolist()}")
            points += len(ours)
    return f"{points} points of tile maps are the same" if points else ""


def _has_slides(part: Any, key: str) -> bool:
    return isinstance(part, Mapping) and is_rows(part.get("slides")) and any(key in row for row in part["slides"])


def _is_froc_set(part: Any) -> bool:
    return _has_slides(part, "detections") or (_has_slides(part, "name") and bool(CONVENTIONS.keys() & part.keys()))


def _is_maps(part: Any) -> bool:
    return is_rows(part) and all("map_xy" in row for row in part)


def _mask(row: Row) -> NDArray[np.bool_]:
    mask = np.zeros((row["height"], row["width"]), dtype=bool)
    for line, first, length in row["mask_rle"]:
        mask[line, first : first + length] = True
    return mask


def _is_normal(row: Row) -> bool:
    return row.get("type") == "normal" or row.get("mask_rle") is None


def _lesions(mask: NDArray[np.bool_], parameters: Row) -> EvaluationMask:
    """Lengths may be given in pixels, so that everything is told in pixels here."""
    um_per_pixel = parameters.get("level0_um_per_px", 0.243) * _downsample(parameters)
    margin_px = parameters.get("dilation_px", MARGIN_UM / um_per_pixel)
    itc_px = parameters.get("itc_major_axis_px", ITC_MAJOR_AXIS_UM / um_per_pixel)
    return evaluation_mask(mask, 1.0, margin_px, itc_px)


def _downsample(parameters: Row) -> float:
    return float(parameters.get("downsample", 2 ** parameters.get("level", 5)))


def _froc_set(slides: Sequence[Row], parameters: Row) -> dict[str, Any]:
    answered: list[dict[str, Any]] = []
    hits: dict[str, list[SlideHits]] = {"floor": [], "round": []}
    for row in slides:
        lesions = None if _is_normal(row) else _lesions(_mask(row), parameters)
        answered.append({} if lesions is None else _regions(_mask(row), lesions))
        slide = FrocSlide(
            str(row.get("name", len(answered))),
            row.get("detections", ()),
            None if lesions is None else lesions.labels,
            frozenset() if lesions is None else lesions.itc,
            _downsample(parameters),
        )
        for index, judged in (("floor", judge_detections(slide, "floor")), ("round", judge_detections(slide, "round"))):
            hits[index].append(judged)
            answered[-1][f"expected_{index}"] = {
                "fp": judged.false_positives.tolist(),
                "tp": judged.lesion_scores.tolist(),
                "n_lesions": judged.n_lesions,
            }
    targets = tuple(map(float, parameters.get("fp_targets", FP_TARGETS)))
    found: dict[str, Any] = {
        name: _curve_and_scores(hits[options.index], replace(options, fp_targets=targets))
        for name, options in CONVENTIONS.items()
    }
    n_lesions = sum(slide.n_lesions for slide in hits["round"])
    return {"slides": answered, "n_lesions": n_lesions, "n_slides": len(slides)} | found


def _regions(mask: NDArray[np.bool_], lesions: EvaluationMask) -> dict[str, Any]:
    return {
        "n_raw_components": label_regions(mask)[1],
        "n_eval_regions": len(lesions.areas_px),
        "eval_mask_pixels": int(lesions.areas_px.sum()),
        "region_areas": lesions.areas_px.tolist(),
        "region_major_axis": lesions.major_axes_px.tolist(),
        "itc_labels": sorted(lesions.itc),
    }


def _curve_and_scores(hits: list[SlideHits], options: FrocOptions) -> dict[str, Any]:
    linear, up, down = (
        froc_of_hits(hits, replace(options, rule="linear")),
        froc_of_hits(hits, replace(options, rule="up")),
        froc_of_hits(hits, replace(options, rule="down")),
    )
    scores = {
        name: {"sensitivities": result.sensitivities.tolist(), "score": result.score}
        for name, result in (("linear", linear), ("bisect_up", up), ("step_down", down))
    }
    curve = {"avg_fp": linear.average_fp.tolist(), "sensitivity": linear.sensitivity.tolist()}
    return {"curve": curve, "linear_monai": linear.score} | scores


def _points(row: Row) -> list[list[float]]:
    scores = np.asarray(row["map_xy"], dtype=np.float64)
    side = 2 ** row.get("level", 8)
    coords = side * np.indices(scores.shape).reshape(2, -1).T
    threshold, radius = row.get("stop_at_or_below", 0.5), row.get("radius_cells", 3)
    points = points_from_tiles(coords, scores.ravel(), side, "nms", threshold, radius)
    return [list(map(float, point)) for point in points]


def _tile_set(part: Row) -> dict[str, Any]:
    threshold = float(part.get("threshold", 0.5))
    side, downsample = float(part.get("tile_size_level0", 256)), float(part.get("mask_downsample", 32))
    answered: list[dict[str, Any]] = []
    for row in part["slides"]:
        scaled = scale_scores(row["attention"], "minmax")
        found = {"scaled": scaled.tolist(), "n_positive_tiles": int((scaled >= threshold).sum())}
        more = (
            _normal_slide(scaled, threshold)
            if _is_normal(row)
            else _tumor_slide(row, scaled, threshold, side, downsample)
        )
        answered.append(found | more)

    def mean(key: str) -> float:
        values = [float(slide[key]) for slide in answered if key in slide]
        return float(np.mean(values)) if values else float("nan")

    regions = [found for slide in answered for found in slide.get("regions_found", [])]
    return {
        "slides": answered,
        "mean_dice": mean("dice"),
        "mean_dice_msclam": mean("dice_msclam"),
        "mean_specificity": mean("specificity"),
        "mean_specificity_msclam": mean("specificity_msclam"),
        "no_miss_rate_regions": mean("all_regions_found"),
        "no_miss_rate_tiles": mean("all_tumor_tiles_positive"),
        "region_recall": float(np.mean(regions)) if regions else float("nan"),
    }


def _normal_slide(scaled: NDArray[np.float64], threshold: float) -> dict[str, Any]:
    return {
        "specificity": specificity(scaled, threshold),
        "specificity_msclam": specificity(scaled, threshold, threshold_is_positive=False),
        "best_possible_with_minmax": highest_specificity(len(scaled)),
    }


def _tumor_slide(
    row: Row, scaled: NDArray[np.float64], threshold: float, side: float, downsample: float
) -> dict[str, Any]:
    truth, positive = _mask(row), scaled >= threshold
    predicted = tile_mask(row["coords"], positive, side, (row["height"], row["width"]), downsample)
    overlap = tile_overlap(truth, row["coords"], side, downsample)
    found = regions_found(truth, predicted)
    return {
        "predicted_pixels": int(predicted.sum()),
        "truth_pixels": int(truth.sum()),
        "intersection_pixels": int((predicted & truth).sum()),
        "dice": dice(predicted, truth),
        "dice_msclam": dice(without_last_tiles(predicted, side, downsample), truth),
        "n_regions": len(found),
        "regions_found": found.tolist(),
        "all_regions_found": bool(found.all()),
        "all_tumor_tiles_positive": all_tumor_tiles_positive(overlap, positive),
        "tumor_tile_any_overlap": (overlap > 0).tolist(),
        "tumor_tile_half_overlap": (overlap >= 0.5).tolist(),
        "tile_dice_any_overlap": dice(positive, overlap > 0),
        "tile_dice_half_overlap": dice(positive, overlap >= 0.5),
    }


KIND = Kind("froc", recognizes, GIVEN, answer, allowance, judge=judge, report=report)
