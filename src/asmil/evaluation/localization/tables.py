"""Localization numbers as tables: CSV, JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from asmil.evaluation.localization.measures import SlideMeasures
from asmil.evaluation.localization.run import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS
from asmil.evaluation.localization.summary import SCALED_METRICS, TITLES, UNSCALED_METRICS
from asmil.evaluation.localization.words import caveats, convention, froc_words, minmax_words, scaling_title, sizes
from asmil.reporting import Estimate, escape_markdown, jsonable
from asmil.reporting.formats import format_interval, format_number


def numbers_frame(found: Localization) -> pd.DataFrame:
    """One row a measure and scaling; scaling is empty where the measure is the same under all of them."""
    shared = {
        "run": found.name,
        "method": found.method,
        "role": found.settings.role,
        "heatmap": found.heatmap_kind,
    }
    rows: list[dict[str, Any]] = []
    for scaling, name, number in _numbers(found):
        of_froc = name == "froc"
        rows.append(
            {
                **shared,
                "metric": name,
                "scaling": scaling,
                "cut": THRESHOLDS[scaling] if scaling else math.nan,
                "preset": found.settings.preset if of_froc else "",
                "conversion": found.settings.conversion if of_froc else "",
                "value": number.value,
                "low": number.interval.low,
                "high": number.interval.high,
                "slides": number.n,
            }
        )
    return pd.DataFrame(rows)


def slides_frame(found: Localization) -> pd.DataFrame:
    """One row a slide; measures of a scaling have its name in front."""
    return pd.DataFrame([_slide_row(one) for one in found.slides])


def localization_dict(found: Localization) -> dict[str, Any]:
    """Everything found, ready for JSON: undefined numbers are None."""
    summary, settings = found.summary, found.settings
    scalings = {}
    for scaling, one in summary.scaled.items():
        froc = one.froc
        curve = {
            "average_fp": jsonable(froc.average_fp),
            "sensitivity": jsonable(froc.sensitivity),
            "fp_targets": list(froc.fp_targets),
            "sensitivities": jsonable(froc.sensitivities),
            "lesions": froc.n_lesions,
            "reason": froc.reason,
        }
        numbers = {name: _number_dict(number) for name, number in one.numbers.items()}
        scalings[scaling] = {"cut": THRESHOLDS[scaling], "measures": numbers, "froc_curve": curve}
    return {
        "run": str(found.path),
        "name": found.name,
        "method": found.method,
        "role": settings.role,
        "heatmap": found.heatmap_kind,
        "seeds_averaged": found.n_seeds,
        "preset": settings.preset,
        "conversion": settings.conversion,
        "radius_tiles": settings.radius if settings.conversion == "nms" else None,
        "normal_labels": sorted(found.normal),
        "tumor_slides": summary.n_tumor,
        "normal_slides": summary.n_normal,
        "patients": summary.n_patients,
        "resamples": summary.resamples,
        "highest_specificity_with_minmax": jsonable(summary.best_specificity),
        "measures": {name: _number_dict(number) for name, number in summary.unscaled.items()},
        "scalings": scalings,
        "left_out": list(found.skipped),
        "notes": list(found.notes),
        "not_judged": list(found.problems),
    }


def markdown_text(found: Localization) -> str:
    """The numbers and how to read them, as Markdown."""
    scalings = found.judging.scalings
    lines = [
        f"# Localization: {escape_markdown(found.name)}",
        "",
        f"{escape_markdown(found.method)}, {sizes(found)}; {convention(found)}.",
        "",
    ]
    lines += ["| measure | " + " | ".join(map(scaling_title, scalings)) + " |", "|" + " --- |" * (len(scalings) + 1)]
    for name in SCALED_METRICS:
        values = [_with_interval(found.summary.scaled[scaling].numbers[name]) for scaling in scalings]
        lines.append(f"| {TITLES[name]} | " + " | ".join(values) + " |")
    for name in UNSCALED_METRICS:
        lines.append(
            f"| {TITLES[name]} | " + " | ".join([_with_interval(found.summary.unscaled[name])] * len(scalings)) + " |"
        )
    lines += ["", "Sensitivity at false positives a slide:", ""]
    lines += [f"- {scaling_title(scaling)}: {froc_words(found.summary.scaled[scaling].froc)}" for scaling in scalings]
    lines += ["", "## What min-max scaling does to these numbers", "", *map(escape_markdown, minmax_words(found))]
    lines += [
        "",
        "## How to read these numbers",
        "",
        *(f"- {escape_markdown(sentence)}" for sentence in caveats(found)),
    ]
    return "\n".join(lines) + "\n"


def _numbers(found: Localization) -> Iterator[tuple[Any, str, Estimate]]:
    for scaling, one in found.summary.scaled.items():
        for name, number in one.numbers.items():
            yield scaling, name, number
    for name, number in found.summary.unscaled.items():
        yield "", name, number


def _slide_row(one: SlideMeasures) -> dict[str, Any]:
    slide, frame = one.map.slide, one.map.frame
    row: dict[str, Any] = {
        "slide": slide.slide,
        "patient": slide.patient,
        "label": slide.label,
        "is_normal": one.is_normal,
        "models": one.map.n_models,
        "tiles": len(one.tumor),
        "tumor_tiles": int(one.tumor.sum()),
        "tumor_mm2": one.tumor_mm2,
        "regions": one.n_regions,
        "lesions": one.n_lesions,
        "itc": one.n_itc,
        "mask_pixel_um": frame.um_per_pixel,
        "tumor_probability": one.tumor_probability,
        "tile_auc": one.tile_auc,
        "tile_ap": one.tile_ap,
    }
    for scaling, measures in one.scaled.items():
        hits = measures.hits
        row |= {
            f"{scaling}_dice": measures.dice,
            f"{scaling}_specificity": measures.specificity,
            f"{scaling}_regions_found": measures.regions_found,
            f"{scaling}_no_missed_region": measures.without_missed_region,
            f"{scaling}_no_missed_tile": measures.without_missed_tile,
            f"{scaling}_positive_tiles": measures.positive_tiles,
            f"{scaling}_detections": measures.n_detections,
            f"{scaling}_false_positives": len(hits.false_positives),
            f"{scaling}_lesions_found": int(((hits.lesion_scores > 0) & hits.is_target).sum()),
        }
    return row


def _number_dict(number: Estimate) -> dict[str, Any]:
    return number.to_dict() | {"slides": number.n}


def _with_interval(number: Estimate) -> str:
    return f"{format_number(number.value)} ({format_interval(number.interval)})"
