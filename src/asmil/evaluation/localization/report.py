"""The report on the localization of a run: what it says, and its files on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from asmil.evaluation.localization.captions import (
    TITLES,
    convention,
    minmax_sentences,
    reading,
    scaling_title,
    sizes,
    warnings_of,
)
from asmil.evaluation.localization.figures import froc_figure, maps_figure, slides_figure
from asmil.evaluation.localization.localize import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling
from asmil.evaluation.localization.slide_evaluator import SlideMeasures
from asmil.files import write_json, write_text
from asmil.reporting import (
    Block,
    Cell,
    Document,
    Estimate,
    Figure,
    Folded,
    Note,
    Row,
    Section,
    SideBySide,
    Table,
    estimate_cell,
    jsonable,
    markdown_document,
)
from asmil.reporting.formats import format_count, format_interval, format_number
from asmil.reporting.page import html_document

MOST_ROWS = 300


def write_localization(found: Localization, folder: Path | str) -> Path:
    """Write `localization.html`, `.md`, `.json`, `.csv` and `localization_slides.csv`; return the path of the page."""
    folder = Path(folder)
    document = localization_document(found)
    write_json(folder / "localization.json", localization_dict(found))
    write_text(folder / "localization.csv", numbers_frame(found).to_csv(index=False))
    write_text(folder / "localization_slides.csv", slides_frame(found).to_csv(index=False))
    write_text(folder / "localization.md", markdown_document(document))
    page = folder / "localization.html"
    write_text(page, html_document(document))
    return page


def localization_document(found: Localization) -> Document:
    """What the report says."""
    sections = [
        Section("Results", [_measures(found), _sensitivities(found), *_result_figures(found)]),
        Section("Effect of min-max scaling", minmax_sentences(found)),
        Section("Slides", [*_maps(found), *_slides(found)]),
    ]
    if found.problems:
        title = f"Not evaluated: {format_count(len(found.problems), 'slide')}"
        sections.insert(0, Section(title, [Note(line) for line in found.problems]))
    return Document(
        kind="Localization",
        title=found.name,
        answer=_answer(found),
        about=f"{found.method}; {convention(found)}.",
        warnings=warnings_of(found),
        sections=sections,
        reading=reading(found),
    )


def _answer(found: Localization) -> str:
    numbers = found.summary.scaled["minmax"].numbers | found.summary.unscaled
    shown = [
        f"{TITLES[name][0]} {format_number(numbers[name].value)} ({format_interval(numbers[name].interval)})"
        for name in ("froc", "dice", "specificity", "tile_auc")
        if not math.isnan(numbers[name].value)
    ]
    return f"{', '.join(shown)} with min-max scaling on the {found.settings.role} part: {sizes(found)}."


def _measures(found: Localization) -> Table:
    summary, scalings = found.summary, found.protocol.scalings
    rows: list[Row] = []
    for name, (title, meaning) in TITLES.items():
        shared = summary.unscaled.get(name)
        estimates = [shared or summary.scaled[scaling].numbers[name] for scaling in scalings]
        rows.append([Cell(title, (meaning,)), *map(estimate_cell, estimates)])
    return Table(
        ["measure", *map(scaling_title, scalings)],
        rows,
        title="value and 95 % interval by patient",
        caption="Value and 95 % interval by patient, for each scaling of the heat map and its cut.",
        in_terminal=True,
    )


def _sensitivities(found: Localization) -> Table:
    curves = {scaling: found.summary.scaled[scaling].froc for scaling in found.protocol.scalings}
    rows = [[scaling_title(scaling), *map(format_number, froc.sensitivities)] for scaling, froc in curves.items()]
    return Table(
        ["scaling", *(f"{target:g}" for target in found.protocol.options.fp_targets)],
        rows,
        title="sensitivity for lesions at false positives per slide",
        caption="Sensitivity for lesions at each number of false positives per slide; FROC is their mean.",
        in_terminal=True,
    )


def _result_figures(found: Localization) -> list[Block]:
    taken = ", each from the next point with more false positives" if found.protocol.options.rule == "up" else ""
    return [
        SideBySide(
            [
                Figure(froc_figure(found), "FROC", f"Rings: the sensitivities that FROC averages{taken}."),
                Figure(slides_figure(found), "Dice and specificity", "One point per slide; bars are means."),
            ]
        )
    ]


def _maps(found: Localization) -> list[Block]:
    caption = (
        "The first tumor and the first normal slides, not chosen by their maps. Left: the heat map with min-max "
        "scaling; then the tiles above the cut of each scaling, in orange. The red line outlines the annotated tumor."
    )
    return [Figure(maps_figure(found), "Heat maps", caption)]


def _slides(found: Localization) -> list[Block]:
    scalings = found.protocol.scalings
    columns = ["slide", "tiles", "tumor tiles", "regions", "p(tumor)", "tile AUC"]
    columns += [f"{scaling} {name}" for scaling in scalings for name in ("Dice", "specificity", "regions found")]
    rows: list[Row] = []
    for one in found.slides[:MOST_ROWS]:
        row = [str(len(one.tumor)), str(int(one.tumor.sum())), str(one.n_regions)]
        row += [format_number(one.tumor_probability), format_number(one.tile_auc)]
        for measures in (one.scaled[scaling] for scaling in scalings):
            row += [format_number(measures.dice), format_number(measures.specificity)]
            row.append(format_number(measures.regions_found, 0))
        rows.append([Cell(one.name, (str(one.map.slide.label),)), *row])
    hidden = len(found.slides) - MOST_ROWS
    more = [f"{format_count(hidden, 'more slide')}: see localization_slides.csv."] if hidden > 0 else []
    return [Folded(f"All slides ({len(found.slides)})", [Table(columns, rows), *more])]


def numbers_frame(found: Localization) -> pd.DataFrame:
    """One row per measure and scaling; the scaling is empty for measures that do not depend on it."""
    rows: list[dict[str, Any]] = []
    for scaling, name, number in _numbers(found):
        of_froc = name == "froc"
        rows.append(
            {
                "run": found.name,
                "method": found.method,
                "role": found.settings.role,
                "heatmap": found.heatmap_kind,
                "metric": name,
                "scaling": scaling or "",
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


def _numbers(found: Localization) -> Iterator[tuple[Scaling | None, str, Estimate]]:
    for scaling, one in found.summary.scaled.items():
        for name, number in one.numbers.items():
            yield scaling, name, number
    for name, number in found.summary.unscaled.items():
        yield None, name, number


def slides_frame(found: Localization) -> pd.DataFrame:
    """One row per slide; the columns of a scaling start with its name."""
    return pd.DataFrame([_slide_row(one) for one in found.slides])


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


def localization_dict(found: Localization) -> dict[str, Any]:
    """Everything found, ready for JSON: undefined numbers are None."""
    summary, settings = found.summary, found.settings
    scalings = {}
    for scaling, one in summary.scaled.items():
        froc = one.froc
        curve = {
            "average_fp": froc.average_fp,
            "sensitivity": froc.sensitivity,
            "fp_targets": froc.fp_targets,
            "sensitivities": froc.sensitivities,
            "lesions": froc.n_lesions,
            "reason": froc.reason,
        }
        scalings[scaling] = {
            "cut": THRESHOLDS[scaling],
            "measures": _estimates(one.numbers),
            "froc_curve": jsonable(curve),
        }
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
        "measures": _estimates(summary.unscaled),
        "scalings": scalings,
        "left_out": list(found.skipped),
        "notes": list(found.notes),
        "not_judged": list(found.problems),
    }


def _estimates(numbers: dict[str, Estimate]) -> dict[str, Any]:
    return {name: number.to_dict() | {"slides": number.n} for name, number in numbers.items()}
