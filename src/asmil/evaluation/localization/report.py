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
from asmil.explain.report_panels import image_files
from asmil.reporting import Block, Cell, Document, Figure, Heading, Row, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, problem_sections
from asmil.reporting.estimate import Estimate, jsonable
from asmil.reporting.files import folded_table, write_document
from asmil.reporting.formats import format_count, format_interval_of, format_number, format_share

FEW_PATIENTS = 10
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


def write_localization(found: Localization, folder: Path | str) -> Path:
    """Write `localization.html`, `.md`, `.json`, `.csv` and `localization_slides.csv`; return the path of the page."""
    tables = {"localization": numbers_rows(found), "localization_slides": list(map(slide_row, found.slides))}
    page = Path(folder) / "localization.html"
    return write_document(localization_document(found), page, localization_dict(found), tables)


def localization_document(found: Localization) -> Document:
    """The content of the report."""
    sections = [
        *problem_sections(found.problems),
        Section("Results", [_measures(found), _sensitivities(found)]),
        Section("Slides", [*_maps(found), *_slides(found)]),
        Section("Curves", _result_figures(found)),
    ]
    return Document(
        kind="Localization",
        title=found.name,
        answer=_answer(found),
        about=f"{found.method}; {found.settings.role} slides of {format_count(found.summary.n_patients, 'patient')}.",
        alarms=[alarm.short for alarm in found.alarms],
        warnings=_warnings(found),
        sections=sections,
        reading=_reading(found),
    )


def _convention(found: Localization) -> str:
    """How FROC was computed; its value means nothing without this."""
    protocol = found.protocol
    radius = f" (radius {protocol.radius} tiles)" if protocol.conversion == "nms" else ""
    preset = f"FROC preset {found.settings.preset}"
    return f"{preset}, points by {protocol.conversion}{radius}, heat map '{found.map_kind}'"


def _answer(found: Localization) -> str:
    summary = found.summary
    numbers = summary.scaled["minmax"].numbers | summary.unscaled
    said = []
    if summary.n_tumor:
        regions = sum(one.n_regions for one in found.slides)
        marked = int(sum(one.scaled["minmax"].regions_found for one in found.slides if not one.is_normal))
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


def _warnings(found: Localization) -> list[str]:
    """The most important caveats."""
    sentences = []
    if found.settings.role != "test":
        sentences.append(f"Optimistic: the models have seen these slides (role {found.settings.role}).")
    counts = {"tumor": found.summary.n_tumor_patients, "normal": found.summary.n_normal_patients}
    few = [f"{format_count(n, 'patient')} with {kind} slides" for kind, n in counts.items() if 0 < n < FEW_PATIENTS]
    if few:
        sentences.append(f"Only {' and '.join(few)}: the true uncertainty is larger than the intervals.")
    for scaling, one in found.summary.scaled.items():
        if one.froc.reason:
            sentences.append(f"FROC is undefined under {scaling}: {one.froc.reason}.")
    return sentences


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
        title="value and 95 % interval (bootstrap over patients)",
        caption="Value and 95 % patient-level bootstrap interval. Tiles above the threshold are marked. Scalings: "
        + "; ".join(f"{scaling}: {SCALINGS[scaling]}" for scaling in scalings)
        + ".",
        in_terminal=True,
    )


def _sensitivities(found: Localization) -> Table:
    curves = {scaling: found.summary.scaled[scaling].froc for scaling in found.protocol.scalings}
    rows = [[scaling_title(scaling), *map(format_number, froc.sensitivities)] for scaling, froc in curves.items()]
    return Table(
        ["scaling", *(f"{target:g}" for target in found.protocol.options.fp_targets)],
        rows,
        title=f"sensitivity for lesions at false positives per slide; {_convention(found)}",
        caption="Sensitivity for lesions at each number of false positives per slide; FROC is their mean.",
        in_terminal=True,
    )


def _result_figures(found: Localization) -> list[Block]:
    return [
        SideBySide(
            [
                Figure(froc_figure(found), "FROC", "Rings: the sensitivities that FROC averages."),
                Figure(slides_figure(found), "Dice and specificity", "One point per slide; bars are means."),
            ]
        )
    ]


def _maps(found: Localization) -> list[Block]:
    images = image_files(found.trained_on)
    blocks: list[Block] = [
        "The first tumor and normal slides in the cohort, not selected by their maps. Orange: tiles above the "
        "threshold; black line: annotated tumor."
    ]
    for one in pictured_slides(found):
        blocks.append(Heading(f"{one.name}: {one.map.slide.label}, tumor probability {one.tumor_probability:.2f}"))
        blocks.append(SideBySide(slide_figures(found, one, images)))
    return blocks


def _slides(found: Localization) -> list[Block]:
    scalings = found.protocol.scalings
    columns = ["slide", "tiles", "tumor tiles", "regions", "p(tumor)", "tile AUC"]
    columns += [f"{scaling} {name}" for scaling in scalings for name in ("Dice", "specificity", "regions found")]
    rows: list[Row] = []
    for one in found.slides:
        row = [str(len(one.tumor)), str(int(one.tumor.sum())), str(one.n_regions)]
        row += [format_number(one.tumor_probability), format_number(one.tile_auc)]
        for measures in (one.scaled[scaling] for scaling in scalings):
            row += [format_number(measures.dice), format_number(measures.specificity)]
            row.append(format_number(measures.regions_found, 0))
        rows.append([Cell(one.name, (str(one.map.slide.label),)), *row])
    return [folded_table("All slides", Table(columns, rows), MOST_ROWS, "localization_slides.csv")]


def _reading(found: Localization) -> list[str]:
    """How to read the numbers; see docs/localization.md for details."""
    summary = found.summary
    froc = summary.scaled["minmax"].froc
    scalings = found.protocol.scalings
    sentences = [
        "Scalings: " + "; ".join(f"{scaling}: {SCALINGS[scaling]}" for scaling in scalings) + ". Thresholds are fixed; "
        "none was chosen on these slides.",
        "FROC values are comparable only under the same preset, conversion and scaling; here: "
        f"{_convention(found)}. Lesions are the annotated regions with a margin of 37.5 um, joined where they touch; "
        "lesions below 275 um are isolated tumor cells, neither targets nor false positives. All other numbers use the "
        "annotation as drawn.",
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
    sentences += [note[0].upper() + note[1:] + "." for note in found.notes]
    if found.skipped:
        sentences.append(f"Left out by the skip list: {', '.join(found.skipped)}.")
    return sentences


def numbers_rows(found: Localization) -> list[dict[str, Any]]:
    """One row per metric and scaling; the scaling is empty for metrics that do not depend on it."""
    settings = found.settings
    return [
        {
            "run": found.name,
            "method": found.method,
            "role": settings.role,
            "heatmap": found.map_kind,
            "metric": name,
            "scaling": scaling or "",
            "cut": THRESHOLDS[scaling] if scaling else math.nan,
            "preset": settings.preset if name == "froc" else "",
            "conversion": settings.conversion if name == "froc" else "",
            "value": number.value,
            **number.interval._asdict(),
            "slides": number.n,
        }
        for scaling, name, number in _numbers(found)
    ]


def _numbers(found: Localization) -> Iterator[tuple[Scaling | None, str, Estimate]]:
    for scaling, one in found.summary.scaled.items():
        for name, number in one.numbers.items():
            yield scaling, name, number
    for name, number in found.summary.unscaled.items():
        yield None, name, number


def slide_row(one: SlideMeasures) -> dict[str, Any]:
    """The row of a slide; the columns of a scaling start with its name."""
    slide = one.map.slide
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
        "mask_pixel_um": one.map.frame.um_per_pixel,
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
    """All results, ready for JSON; undefined numbers are None."""
    summary, settings = found.summary, found.settings
    scalings = {
        scaling: {
            "cut": THRESHOLDS[scaling],
            "measures": _estimates(one.numbers),
            "froc_curve": {
                "average_fp": one.froc.average_fp,
                "sensitivity": one.froc.sensitivity,
                "fp_targets": one.froc.fp_targets,
                "sensitivities": one.froc.sensitivities,
                "lesions": one.froc.n_lesions,
                "reason": one.froc.reason,
            },
        }
        for scaling, one in summary.scaled.items()
    }
    content = {
        "run": str(found.path),
        "name": found.name,
        "method": found.method,
        "role": settings.role,
        "heatmap": found.map_kind,
        "seeds_averaged": found.n_seeds,
        "preset": settings.preset,
        "conversion": settings.conversion,
        "radius_tiles": settings.radius if settings.conversion == "nms" else None,
        "normal_labels": sorted(found.normal),
        "tumor_slides": summary.n_tumor,
        "normal_slides": summary.n_normal,
        "patients": summary.n_patients,
        "resamples": summary.resamples,
        "highest_specificity_with_minmax": summary.best_specificity,
        "measures": _estimates(summary.unscaled),
        "scalings": scalings,
        "left_out": found.skipped,
        "notes": found.notes,
        "not_judged": found.problems,
    }
    return dict(jsonable(content))


def _estimates(numbers: dict[str, Estimate]) -> dict[str, Any]:
    return {name: number.to_dict() | {"slides": number.n} for name, number in numbers.items()}
