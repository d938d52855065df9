"""The report on the faithfulness of a run's maps: what it says, and its files on disk."""

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


def write_faithfulness(found: Faithfulness, folder: Path | str) -> Path:
    """Write `faithfulness.html`, `.md`, `.json`, `.csv` and `faithfulness_slides.csv`; return the path of the page."""
    tables = {"faithfulness": list(_rows(found)), "faithfulness_slides": list(_slide_rows(found))}
    page = Path(folder) / "faithfulness.html"
    return write_document(faithfulness_document(found), page, faithfulness_dict(found), tables)


def faithfulness_document(found: Faithfulness) -> Document:
    """The content of the report."""
    sections = [
        Section(
            "Results",
            [numbers_table(found), SideBySide(curve_figures(found)), _caption(found)],
        ),
    ]
    if found.missing:
        rows = [(titled(kind), why) for kind, why in found.missing.items()]
        sections.append(Section("Kinds that the method does not have", [Table(["kind", "reason"], rows)]))
    sections += problem_sections(found.problems)
    return Document(
        kind="Faithfulness",
        title=found.name,
        answer=answer(found),
        about=f"{found.method}, explained: {OUTPUTS[found.task]}; {_sizes(found)}.",
        alarms=found.alarms,
        warnings=_warnings(found),
        sections=sections,
        reading=READING,
    )


def answer(found: Faithfulness) -> str:
    """The result in one sentence."""
    maps = {kind: one for kind, one in found.kinds.items() if kind not in CONTROLS}
    best = max(maps, key=lambda kind: maps[kind].area.value)
    one = maps[best].area
    said = f"area between the curves {format_number(one.value)}, 95 % interval {format_interval_of(one)}"
    if not one.interval.low > 0:
        return (
            f"No map of {found.method} is shown to be more faithful than a random order of tiles; the best is "
            f"{titled(best)} ({said})."
        )
    return (
        f"Of the maps of {found.method}, {titled(best)} has the largest effect: removing its highest tiles first "
        f"changes the predictions most ({said}; a random order: about 0).{_verdict(found, best)}"
    )


def _verdict(found: Faithfulness, best: str) -> str:
    """Whether the best map is shown to be better than the method's own."""
    difference = found.kinds[best].over_attention
    if difference is None:
        return ""
    own = titled(found.first_kind)
    numbers = f"{format_signed(difference.value)} in area, {format_signed_interval(difference.interval)}"
    if difference.interval.low > 0 and len(found.slides) < FEW_SLIDES:
        return f" On these few slides it explains them better than {own} does ({numbers})."
    if difference.interval.low > 0:
        return f" It explains them better than {own} does ({numbers})."
    return f" That it explains them better than {own} does is not shown ({numbers})."


def numbers_table(found: Faithfulness) -> Table:
    """One row per kind of map and control."""
    located = any(one.tile_auc is not None for one in found.kinds.values())
    probabilities = found.task in ("classification", "multilabel")
    columns = ["map", "area between curves", f"difference from {titled(found.first_kind)}"]
    columns += ["area in log-odds"] if probabilities else []
    columns += ["tile AUC", "FROC"] if located else []
    rows = []
    for kind, one in found.kinds.items():
        row = [
            Cell(titled(kind), notes=("control",) if kind in CONTROLS else ()),
            estimate_cell(one.area),
            UNDEFINED_TEXT if one.over_attention is None else _difference(one.over_attention),
            *([estimate_cell(one.evidence_area)] if probabilities else []),
        ]
        if located:
            row += [_optional(one.tile_auc), _optional(one.froc)]
        rows.append(row)
    caption = f"Means over {format_count(len(found.slides), 'slide')}, with 95 % intervals by resampling patients."
    return Table(columns, rows, caption=caption, in_terminal=True, emphasis=True)


def curve_figures(found: Faithfulness) -> list[Figure]:
    """One figure per order: the prediction over the share of removed tiles, most and least relevant first."""
    values = np.array(list(found.curves.values()))
    margin = 0.05 * float(np.ptp(values)) or 0.05
    limits = float(values.min()) - margin, float(values.max()) + margin
    return [_curve_figure(found, name, place, limits) for place, name in enumerate(found.curves)]


def _curve_figure(found: Faithfulness, name: str, place: int, limits: tuple[float, float]) -> Figure:
    most, least = found.curves[name]
    color = CONTROL_COLORS.get(name, COLORS[place % len(COLORS)])
    with new_figure(3.6, 2.8) as figure:
        axes = figure.add_subplot()
        axes.fill_between(SHARES, most, least, color=color, alpha=0.15, linewidth=0)
        axes.plot(SHARES, least, color=color, linewidth=1.6, linestyle="--", label="least relevant first")
        axes.plot(SHARES, most, color=color, linewidth=1.6, label="most relevant first")
        axes.set_ylim(*limits)
        axes.set_title(f"{plain_text(titled(name))}: area {format_number(found.kinds[name].area.value)}")
        axes.set_xlabel("share of tiles removed")
        axes.set_ylabel(OUTPUTS[found.task])
        axes.legend(loc="best")
        return Figure(svg_text(figure), f"Prediction while tiles are removed by {titled(name)}")


def faithfulness_dict(found: Faithfulness) -> dict[str, Any]:
    """All numbers as plain values."""
    return dict(
        jsonable(
            {
                "run": found.name,
                "method": found.method,
                "task": found.task,
                "explained": OUTPUTS[found.task],
                "role": found.settings.role,
                "answer": answer(found),
                "slides": len(found.slides),
                "patients": found.n_patients,
                "models": found.n_models,
                "first_kind": found.first_kind,
                "kinds": {kind: _summary_dict(one) for kind, one in found.kinds.items()},
                "missing": dict(found.missing),
                "shares": list(SHARES),
                "curves": {
                    kind: {"most_relevant_first": most, "least_relevant_first": least}
                    for kind, (most, least) in found.curves.items()
                },
                "notes": list(found.notes),
                "problems": list(found.problems),
            }
        )
    )


def _summary_dict(one: KindSummary) -> dict[str, Any]:
    parts = {
        "area": one.area,
        "evidence_area": one.evidence_area,
        "over_attention": one.over_attention,
        "tile_auc": one.tile_auc,
        "froc": one.froc,
    }
    return {name: {**value.to_dict(), "n": value.n} for name, value in parts.items() if value is not None}


def _rows(found: Faithfulness) -> Iterator[dict[str, Any]]:
    for kind, one in found.kinds.items():
        for metric, value in _summary_dict(one).items():
            yield {"map": kind, "metric": metric, **value}


def _slide_rows(found: Faithfulness) -> Iterator[dict[str, Any]]:
    for one in found.slides:
        row = {"slide": one.name, "patient": one.patient, "explained": one.explained, "shown": one.shown}
        row |= {"tiles": one.n_tiles}
        row |= {f"area_{kind}": flipping.area for kind, flipping in one.orders.items()}
        yield row | {f"area_{RANDOM}": float(np.mean([flipping.area for flipping in one.random]))}


def _optional(estimate: Estimate | None) -> Cell | str:
    return UNDEFINED_TEXT if estimate is None else estimate_cell(estimate)


def _difference(estimate: Estimate) -> Cell:
    return Cell(
        format_signed(estimate.value),
        interval=format_signed_interval(estimate.interval),
        strong=estimate.interval.excludes_zero,
    )


def _sizes(found: Faithfulness) -> str:
    return f"{format_count(len(found.slides), 'slide')} of {format_count(found.n_patients, 'patient')}"


def _caption(found: Faithfulness) -> str:
    return f"Curves are means over {format_count(len(found.slides), 'slide')}. Shaded: the area between the curves."


def _warnings(found: Faithfulness) -> list[str]:
    warnings = list(found.notes)
    if len(found.slides) < FEW_SLIDES:
        few = format_count(len(found.slides), "slide")
        warnings.append(f"Only {few}: the true uncertainty is larger than the intervals.")
    return warnings
