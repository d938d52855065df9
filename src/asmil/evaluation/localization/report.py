"""The localization report of a run: its content and its files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asmil.evaluation.localization.figures import froc_figure, pictured_slides, slide_figures, slides_figure
from asmil.evaluation.localization.localize import Localization
from asmil.evaluation.localization.scaling import THRESHOLDS, Scaling, scaling_title
from asmil.evaluation.localization.slide_evaluator import SlideMeasures
from asmil.explain.report_panels import known_images
from asmil.reporting import Block, Cell, Document, Figure, Heading, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, problem_sections
from asmil.reporting.estimate import Estimate, jsonable
from asmil.reporting.files import folded_table, write_document
from asmil.reporting.formats import format_count, format_interval_of, format_number, format_share

FEWEST_OF_A_KIND = 10
"""With fewer patients with tumor slides, or with normal ones, bootstrap intervals are too narrow."""
MOST_ROWS = 300
TITLES = {
    "froc": ("FROC", "lesions found, mean over false alarms allowed"),
    "dice": ("Dice", "overlap of marked and annotated area"),
    "specificity": ("specificity", "tiles of normal slides that are not marked"),
    "no_miss_regions": ("no missed region", "tumor slides with every region marked"),
    "no_miss_tiles": ("no missed tile", "tumor slides with every tumor tile marked"),
    "region_recall": ("region recall", "annotated regions with a marked tile"),
    "pooled_auc": ("tile AUC, pooled", "tiles of all slides together"),
    "pooled_ap": ("tile AP, pooled", "tiles of all slides together"),
    "tile_auc": ("tile AUC", "tumor tiles ranked above others, tumor slides"),
    "tile_ap": ("tile AP", "average precision of tumor tiles, tumor slides"),
}
"""Title and short definition of every metric."""
SCALINGS: dict[Scaling, str] = {
    "minmax": "each slide scaled from its lowest tile (0) to its highest (1), as in papers",
    "gated": "minmax times the tumor probability of the slide, so a slide predicted as normal has no marked tile",
    "times_n": "attention × number of tiles (uniform attention: 1)",
    "cohort": "one scale for all slides",
    "rank": "rank among the tiles of the slide",
}


def write_localization(localization: Localization, folder: Path | str) -> Path:
    """Write `localization.html`, `.md`, `.json`, `.csv` and `localization_slides.csv`; return the path of the page."""
    tables = {
        "localization": numbers_rows(localization),
        "localization_slides": list(map(slide_row, localization.slides)),
    }
    page = Path(folder) / "localization.html"
    return write_document(localization_document(localization), page, localization_dict(localization), tables)


def localization_document(localization: Localization) -> Document:
    """The content of the report."""
    patients = format_count(localization.summary.n_patients, "patient")
    froc = Figure(froc_figure(localization), "FROC", "Rings: the sensitivities that FROC averages.")
    slides = Figure(slides_figure(localization), "Dice and specificity", "One point per slide; bars are means.")
    sections = [
        *problem_sections(localization.problems),
        Section("Results", [_measures(localization), _sensitivities(localization)]),
        Section("Slides", [*_maps(localization), *_slides(localization)]),
        Section("Curves", [SideBySide([froc, slides])]),
    ]
    return Document(
        kind="Localization",
        title=localization.name,
        answer=_answer(localization),
        about=f"{localization.method}; {localization.settings.role} slides of {patients}.",
        alarms=[alarm.short for alarm in localization.alarms],
        warnings=_warnings(localization),
        sections=sections,
        reading=_reading(localization),
    )


def _convention(localization: Localization) -> str:
    """How FROC was computed; its value means nothing without this."""
    protocol = localization.protocol
    radius = f" (radius {protocol.radius} tiles)" if protocol.conversion == "nms" else ""
    preset = f"FROC preset {localization.settings.preset}"
    return f"{preset}, points by {protocol.conversion}{radius}, heat map '{localization.map_kind}'"


def _answer(localization: Localization) -> str:
    summary = localization.summary
    numbers = summary.scaled["minmax"].numbers | summary.unscaled
    said = []
    if summary.n_tumor:
        regions = sum(slide.n_regions for slide in localization.slides)
        marked = int(sum(slide.scaled["minmax"].regions_found for slide in localization.slides if not slide.is_normal))
        on = format_count(summary.n_tumor, "tumor slide")
        said.append(f"The maps mark {marked} of {format_count(regions, 'annotated region')} on {on}")
    if summary.n_normal:
        wrong = format_share(1 - numbers["specificity"].value)
        said.append(f"{wrong} of the tiles of {format_count(summary.n_normal, 'normal slide')} are marked by mistake")
    sentences = [f"{', and '.join(said)}."]
    auc = numbers["tile_auc"]
    if not math.isnan(auc.value):
        ends = f"95 % interval {format_interval_of(auc)}; 0.5 is chance"
        sentences.append(f"Tile AUC, the ranking of tumor tiles above others: {format_number(auc.value)} ({ends}).")
    return " ".join(sentences)


def _warnings(localization: Localization) -> list[str]:
    """The most important caveats."""
    sentences = []
    if localization.settings.role != "test":
        sentences.append(f"Optimistic: the models have seen these slides (role {localization.settings.role}).")
    counts = {"tumor": localization.summary.n_tumor_patients, "normal": localization.summary.n_normal_patients}
    few = [f"{format_count(n, 'patient')} with {kind} slides" for kind, n in counts.items() if 0 < n < FEWEST_OF_A_KIND]
    if few:
        sentences.append(f"Only {' and '.join(few)}: the true uncertainty is larger than the intervals.")
    for scaling, summary in localization.summary.scaled.items():
        if summary.froc.reason:
            sentences.append(f"FROC is undefined under {scaling}: {summary.froc.reason}.")
    return sentences


def _measures(localization: Localization) -> Table:
    summary, scalings = localization.summary, localization.protocol.scalings
    rows: list[Row] = []
    for name, (title, meaning) in TITLES.items():
        shared = summary.unscaled.get(name)
        estimates = [shared or summary.scaled[scaling].numbers[name] for scaling in scalings]
        rows.append([Cell(title, (meaning,)), *map(estimate_cell, estimates)])
    return Table(
        ["metric", *map(scaling_title, scalings)],
        rows,
        title="value and 95 % interval (bootstrap over patients)",
        caption="Value and 95 % patient-level bootstrap interval. Tiles above the threshold are marked. Scalings: "
        + "; ".join(f"{scaling}: {SCALINGS[scaling]}" for scaling in scalings)
        + ".",
        in_terminal=True,
    )


def _sensitivities(localization: Localization) -> Table:
    curves = {scaling: localization.summary.scaled[scaling].froc for scaling in localization.protocol.scalings}
    rows = [[scaling_title(scaling), *map(format_number, froc.sensitivities)] for scaling, froc in curves.items()]
    return Table(
        ["scaling", *(f"{target:g}" for target in localization.protocol.options.fp_targets)],
        rows,
        title=f"sensitivity for lesions at false positives per slide; {_convention(localization)}",
        caption="Sensitivity for lesions at each number of false positives per slide; FROC is their mean.",
        in_terminal=True,
    )


def _maps(localization: Localization) -> list[Block]:
    images = known_images(localization.trained_on)
    blocks: list[Block] = [
        "The first tumor and normal slides in the cohort, not selected by their maps. Orange: tiles above the "
        "threshold; black line: annotated tumor."
    ]
    for slide in pictured_slides(localization):
        blocks.append(
            Heading(f"{slide.name}: {slide.map.slide.label}, tumor probability {slide.tumor_probability:.2f}")
        )
        blocks.append(SideBySide(slide_figures(localization, slide, images)))
    return blocks


def _slides(localization: Localization) -> list[Block]:
    scalings = localization.protocol.scalings
    columns = ["slide", "tiles", "tumor tiles", "regions", "p(tumor)", "tile AUC"]
    columns += [f"{scaling} {name}" for scaling in scalings for name in ("Dice", "specificity", "regions found")]
    rows: list[Row] = []
    for slide in localization.slides:
        row = [str(len(slide.tumor)), str(int(slide.tumor.sum())), str(slide.n_regions)]
        row += [format_number(slide.tumor_probability), format_number(slide.tile_auc)]
        for measures in (slide.scaled[scaling] for scaling in scalings):
            row += [format_number(measures.dice), format_number(measures.specificity)]
            row.append(format_number(measures.regions_found, 0))
        rows.append([Cell(slide.name, (str(slide.map.slide.label),)), *row])
    return [folded_table("All slides", Table(columns, rows), MOST_ROWS, "localization_slides.csv")]


def _reading(localization: Localization) -> list[str]:
    """How to read the numbers; see docs/localization.md for details."""
    summary = localization.summary
    froc = summary.scaled["minmax"].froc
    scalings = localization.protocol.scalings
    sentences = [
        "Scalings: " + "; ".join(f"{scaling}: {SCALINGS[scaling]}" for scaling in scalings) + ". Thresholds are fixed; "
        "none was chosen on these slides.",
        "FROC values are comparable only under the same preset, conversion and scaling; here: "
        f"{_convention(localization)}. Lesions are the annotated regions with a margin of 37.5 um, joined where they "
        "touch; lesions below 275 um are isolated tumor cells, neither targets nor false positives. All other numbers "
        "use the annotation as drawn.",
        "A region is missed if no positive tile overlaps it. `No missed tile` is stricter: every tile that overlaps "
        "tumor must be positive. Tile AUC and AP need no threshold; the pooled versions also test whether scores are "
        "comparable between slides.",
        "Min-max scaling sets the highest tile of every slide to 1, even on normal slides: specificity then measures "
        "how peaked the map is, not whether the slide looks normal.",
        f"Intervals: {summary.resamples} bootstrap resamples of patients, each with all its slides.",
    ]
    if summary.n_normal:
        forced = summary.n_normal / (froc.n_normal if froc.options.fp_slides == "normal" else froc.n_slides)
        sentences[3] += (
            f" It is at most {summary.best_specificity:.4f} here, and the FROC curve starts at {forced:.2f} or more "
            "false positives per slide."
        )
    sentences += [note[0].upper() + note[1:] + "." for note in localization.notes]
    if localization.skipped:
        sentences.append(f"Left out by the skip list: {', '.join(localization.skipped)}.")
    return sentences


def numbers_rows(localization: Localization) -> list[dict[str, Any]]:
    """One row per metric and scaling; the scaling is empty for metrics that do not depend on it."""
    settings = localization.settings
    return [
        {
            "run": localization.name,
            "method": localization.method,
            "role": settings.role,
            "heatmap": localization.map_kind,
            "metric": name,
            "scaling": scaling or "",
            "cut": THRESHOLDS[scaling] if scaling else math.nan,
            "preset": settings.preset if name == "froc" else "",
            "conversion": settings.conversion if name == "froc" else "",
            "value": number.value,
            **number.interval._asdict(),
            "slides": number.n,
        }
        for scaling, name, number in _numbers(localization)
    ]


def _numbers(localization: Localization) -> Iterator[tuple[Scaling | None, str, Estimate]]:
    for scaling, summary in localization.summary.scaled.items():
        for name, number in summary.numbers.items():
            yield scaling, name, number
    for name, number in localization.summary.unscaled.items():
        yield None, name, number


def slide_row(measured: SlideMeasures) -> dict[str, Any]:
    """The row of a slide; the columns of a scaling start with its name."""
    slide = measured.map.slide
    row: dict[str, Any] = {
        "slide": slide.slide,
        "patient": slide.patient,
        "label": slide.label,
        "is_normal": measured.is_normal,
        "models": measured.map.n_models,
        "tiles": len(measured.tumor),
        "tumor_tiles": int(measured.tumor.sum()),
        "tumor_mm2": measured.tumor_mm2,
        "regions": measured.n_regions,
        "lesions": measured.n_lesions,
        "itc": measured.n_itc,
        "mask_pixel_um": measured.map.frame.um_per_pixel,
        "tumor_probability": measured.tumor_probability,
        "tile_auc": measured.tile_auc,
        "tile_ap": measured.tile_ap,
    }
    for scaling, measures in measured.scaled.items():
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


def localization_dict(localization: Localization) -> dict[str, Any]:
    """All results, ready for JSON; undefined numbers are None."""
    summary, settings = localization.summary, localization.settings
    scalings = {
        scaling: {
            "cut": THRESHOLDS[scaling],
            "metrics": _estimates(scaled.numbers),
            "froc_curve": {
                "average_fp": scaled.froc.average_fp,
                "sensitivity": scaled.froc.sensitivity,
                "fp_targets": scaled.froc.fp_targets,
                "sensitivities": scaled.froc.sensitivities,
                "lesions": scaled.froc.n_lesions,
                "reason": scaled.froc.reason,
            },
        }
        for scaling, scaled in summary.scaled.items()
    }
    content = {
        "run": str(localization.path),
        "name": localization.name,
        "method": localization.method,
        "role": settings.role,
        "heatmap": localization.map_kind,
        "seeds_averaged": localization.n_seeds,
        "preset": settings.preset,
        "conversion": settings.conversion,
        "radius_tiles": settings.radius if settings.conversion == "nms" else None,
        "normal_labels": sorted(localization.normal),
        "tumor_slides": summary.n_tumor,
        "normal_slides": summary.n_normal,
        "patients": summary.n_patients,
        "resamples": summary.resamples,
        "highest_specificity_with_minmax": summary.best_specificity,
        "metrics": _estimates(summary.unscaled),
        "scalings": scalings,
        "left_out": localization.skipped,
        "notes": localization.notes,
        "not_judged": localization.problems,
    }
    return dict(jsonable(content))


def _estimates(numbers: dict[str, Estimate]) -> dict[str, Any]:
    return {name: number.to_dict() | {"slides": number.n} for name, number in numbers.items()}
