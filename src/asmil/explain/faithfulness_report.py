"""The report on the faithfulness of a run's maps: its content and its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from asmil.explain.faithfulness import CONTROLS, ORACLE, RANDOM, Faithfulness, KindSummary
from asmil.explain.flipping import SHARES
from asmil.explain.kinds import titled
from asmil.reporting import Cell, Document, Figure, Section, SideBySide, Table
from asmil.reporting.document import estimate_cell, problem_sections
from asmil.reporting.drawing import COLORS, new_figure, plain_text, svg_text
from asmil.reporting.estimate import Estimate, jsonable
from asmil.reporting.files import write_document
from asmil.reporting.formats import (
    UNDEFINED_TEXT,
    format_count,
    format_interval_of,
    format_number,
    format_signed,
    format_signed_interval,
)

FEW_SLIDES = 20
CONTROL_COLORS = {RANDOM: "#8a94a0", ORACLE: "#111111"}
OUTPUTS = {
    "classification": "probability of the explained class",
    "multilabel": "probability of the explained label",
    "survival": "risk",
    "regression": "value",
}
READING = (
    "Tiles are removed in the order of a map, and the prediction is repeated. With a faithful map, the prediction "
    "falls quickly if the most relevant tiles are removed first, and slowly if the least relevant tiles are removed "
    "first. The area between the curves is the mean difference while 0 to 95 % of the tiles are removed.",
    "A random order has an area of about 0. The area measures whether a map explains the model; tile AUC and FROC "
    "measure whether the map finds tumor.",
    "Removing tiles makes bags smaller than those the model was trained on. This affects all orders equally.",
    "True tumor tiles first: if the area of a map is larger, the model relies on more than tumor tiles.",
    "In probabilities, the area is small where a prediction stays near 0 or 1. Log-odds do not have this limit.",
)


def write_faithfulness(result: Faithfulness, folder: Path | str) -> Path:
    """Write `faithfulness.html`, `.md`, `.json`, `.csv` and `faithfulness_slides.csv`; return the path of the page."""
    tables = {"faithfulness": list(_rows(result)), "faithfulness_slides": list(_slide_rows(result))}
    page = Path(folder) / "faithfulness.html"
    return write_document(faithfulness_document(result), page, faithfulness_dict(result), tables)


def faithfulness_document(result: Faithfulness) -> Document:
    """The content of the report."""
    slides = format_count(len(result.slides), "slide")
    caption = f"Curves are means over {slides}. Shaded: the area between the curves."
    sections = [Section("Results", [numbers_table(result), SideBySide(curve_figures(result)), caption])]
    if result.missing:
        rows = [(titled(kind), why) for kind, why in result.missing.items()]
        sections.append(Section("Kinds that the method does not have", [Table(["kind", "reason"], rows)]))
    sections += problem_sections(result.problems)
    patients = format_count(result.n_patients, "patient")
    return Document(
        kind="Faithfulness",
        title=result.name,
        answer=answer(result),
        about=f"{result.method}, explained: {OUTPUTS[result.task]}; {slides} of {patients}.",
        alarms=result.alarms,
        warnings=_warnings(result),
        sections=sections,
        reading=READING,
    )


def answer(result: Faithfulness) -> str:
    """The result in one sentence."""
    maps = [kind for kind in result.kinds if kind not in CONTROLS]
    best = max(maps, key=lambda kind: result.kinds[kind].area.value)
    area = result.kinds[best].area
    said = f"area between the curves {format_number(area.value)}, 95 % interval {format_interval_of(area)}"
    if not area.interval.low > 0:
        return (
            f"No map of {result.method} is shown to be more faithful than a random order of tiles; the best is "
            f"{titled(best)} ({said})."
        )
    return (
        f"Of the maps of {result.method}, {titled(best)} has the largest effect: removing its highest tiles first "
        f"changes the predictions most ({said}; a random order: about 0).{_verdict(result, best)}"
    )


def _verdict(result: Faithfulness, best: str) -> str:
    """Whether the best map is shown to be better than the method's own."""
    difference = result.kinds[best].over_attention
    if difference is None:
        return ""
    own = titled(result.first_kind)
    numbers = f"{format_signed(difference.value)} in area, {format_signed_interval(difference.interval)}"
    if difference.interval.low > 0:
        start = "On these few slides it" if len(result.slides) < FEW_SLIDES else "It"
        return f" {start} explains them better than {own} does ({numbers})."
    return f" That it explains them better than {own} does is not shown ({numbers})."


def numbers_table(result: Faithfulness) -> Table:
    """One row per kind of map and control."""
    located = any(summary.tile_auc is not None for summary in result.kinds.values())
    probabilities = result.task in ("classification", "multilabel")
    columns = ["map", "area between curves", f"difference from {titled(result.first_kind)}"]
    columns += ["area in log-odds"] if probabilities else []
    columns += ["tile AUC", "FROC"] if located else []
    rows = []
    for kind, summary in result.kinds.items():
        row = [
            Cell(titled(kind), notes=("control",) if kind in CONTROLS else ()),
            estimate_cell(summary.area),
            UNDEFINED_TEXT if summary.over_attention is None else _difference(summary.over_attention),
            *([estimate_cell(summary.evidence_area)] if probabilities else []),
        ]
        if located:
            localization = (summary.tile_auc, summary.froc)
            row += [UNDEFINED_TEXT if estimate is None else estimate_cell(estimate) for estimate in localization]
        rows.append(row)
    caption = f"Means over {format_count(len(result.slides), 'slide')}, with 95 % intervals by resampling patients."
    return Table(columns, rows, caption=caption, in_terminal=True, emphasis=True)


def curve_figures(result: Faithfulness) -> list[Figure]:
    """One figure per order: the prediction over the share of removed tiles, most and least relevant first."""
    values = np.array(list(result.curves.values()))
    margin = 0.05 * float(np.ptp(values)) or 0.05
    limits = float(values.min()) - margin, float(values.max()) + margin
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(result.curves)} | CONTROL_COLORS
    return [_curve_figure(result, name, colors[name], limits) for name in result.curves]


def _curve_figure(result: Faithfulness, name: str, color: str, limits: tuple[float, float]) -> Figure:
    most, least = result.curves[name]
    with new_figure(3.6, 2.8) as figure:
        axes = figure.add_subplot()
        axes.fill_between(SHARES, most, least, color=color, alpha=0.15, linewidth=0)
        axes.plot(SHARES, least, color=color, linewidth=1.6, linestyle="--", label="least relevant first")
        axes.plot(SHARES, most, color=color, linewidth=1.6, label="most relevant first")
        axes.set_ylim(*limits)
        axes.set_title(f"{plain_text(titled(name))}: area {format_number(result.kinds[name].area.value)}")
        axes.set_xlabel("share of tiles removed")
        axes.set_ylabel(OUTPUTS[result.task])
        axes.legend(loc="best")
        return Figure(svg_text(figure), f"Prediction while tiles are removed by {titled(name)}")


def faithfulness_dict(result: Faithfulness) -> dict[str, Any]:
    """All numbers as plain values."""
    return dict(
        jsonable(
            {
                "run": result.name,
                "method": result.method,
                "task": result.task,
                "explained": OUTPUTS[result.task],
                "role": result.settings.role,
                "answer": answer(result),
                "slides": len(result.slides),
                "patients": result.n_patients,
                "models": result.n_models,
                "first_kind": result.first_kind,
                "kinds": {kind: _summary_dict(summary) for kind, summary in result.kinds.items()},
                "missing": dict(result.missing),
                "shares": list(SHARES),
                "curves": {
                    kind: {"most_relevant_first": most, "least_relevant_first": least}
                    for kind, (most, least) in result.curves.items()
                },
                "notes": list(result.notes),
                "problems": list(result.problems),
            }
        )
    )


def _summary_dict(summary: KindSummary) -> dict[str, Any]:
    estimates: dict[str, Estimate | None] = vars(summary)
    return {name: {**value.to_dict(), "n": value.n} for name, value in estimates.items() if value is not None}


def _rows(result: Faithfulness) -> Iterator[dict[str, Any]]:
    for kind, summary in result.kinds.items():
        for metric, value in _summary_dict(summary).items():
            yield {"map": kind, "metric": metric, **value}


def _slide_rows(result: Faithfulness) -> Iterator[dict[str, Any]]:
    for slide in result.slides:
        row = {"slide": slide.name, "patient": slide.patient, "explained": slide.explained, "shown": slide.shown}
        row |= {"tiles": slide.n_tiles}
        row |= {f"area_{kind}": flipping.area for kind, flipping in slide.orders.items()}
        yield row | {f"area_{RANDOM}": float(np.mean([flipping.area for flipping in slide.random]))}


def _difference(estimate: Estimate) -> Cell:
    return Cell(
        format_signed(estimate.value),
        interval=format_signed_interval(estimate.interval),
        strong=estimate.interval.excludes_zero,
    )


def _warnings(result: Faithfulness) -> list[str]:
    warnings = list(result.notes)
    if len(result.slides) < FEW_SLIDES:
        few = format_count(len(result.slides), "slide")
        warnings.append(f"Only {few}: the true uncertainty is larger than the intervals.")
    return warnings
