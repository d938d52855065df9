"""A table of the paper with our numbers beside it, as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from asmil.files import write_json, write_text
from asmil.paper.comparing import Cell, Effect, cells, effects
from asmil.paper.printed import printed
from asmil.paper.recipes import Recipe
from asmil.paper.running import PaperRun
from asmil.reporting import Document, Section, Table, jsonable, markdown_document
from asmil.reporting.formats import format_number, format_p, format_signed, format_signed_interval
from asmil.reporting.page import html_document

STAND_IN = (
    "SYNTHETIC STAND-IN: these cohorts have the sizes, classes and sites of the paper's data, but synthetic features. "
    "The numbers say nothing about the data sets themselves."
)
SMALL = "Reduced size ({size}): for the machinery, not for conclusions."


def paper_document(run: PaperRun, results: pd.DataFrame) -> Document:
    """Our numbers beside the printed ones, and the effects of rows against their references."""
    recipe = run.recipe
    ours, compared = cells(recipe, results, run.synthetic), effects(recipe, results, run.size == "quick")
    warnings = [STAND_IN] if run.synthetic else []
    if run.size != "full":
        warnings.append(SMALL.format(size=run.size))
    table = printed()[0].get(recipe.id)
    doubts = [] if table is None else [f"In print: {doubt}." for doubt in table.doubts]
    sections = [Section("Numbers", [_numbers(ours)])]
    if compared:
        sections.append(Section("Effects", [_effects(compared)]))
    return Document(
        kind="table of the paper" + (" (synthetic stand-in)" if run.synthetic else ""),
        title=f"{recipe.id}: {recipe.title}",
        answer=answer(recipe, compared, run.synthetic),
        sections=sections,
        about=f"{len(results)} trainings; size {run.size}; preset {run.preset} for ASMIL",
        warnings=[*warnings, *doubts],
        reading=[
            "An effect is a row minus its reference, paired by seed, with a 95 % interval by Student's t over seeds.",
            "agrees: the interval excludes 0 on the side of the printed difference; differs: on the other side, or no "
            "effect where the paper prints more than 0.02; undecided: anything else.",
        ],
    )


def answer(recipe: Recipe, compared: Sequence[Effect], synthetic: bool) -> str:
    """The result in one sentence."""
    counts = Counter(one.verdict for one in compared if one.verdict != "cannot be compared")
    where = "on a synthetic stand-in" if synthetic else "on this cohort"
    if not counts:
        return f"{recipe.id} {where}: no effect can be compared with a printed one."
    counted = ", ".join(f"{counts[word]} {word}" for word in ("agrees", "differs", "undecided") if counts[word])
    return f"{recipe.id} {where}: of {sum(counts.values())} printed effects, {counted}."


def write_paper(run: PaperRun, results: pd.DataFrame) -> Path:
    """Write `table.html`, `table.md` and `table.json` into the folder of the run; returns the page."""
    document = paper_document(run, results)
    write_text(run.out / "table.html", html_document(document))
    write_text(run.out / "table.md", markdown_document(document))
    write_json(
        run.out / "table.json",
        jsonable(
            {
                **run.about(),
                "cells": cells(run.recipe, results, run.synthetic),
                "effects": effects(run.recipe, results, run.size == "quick"),
            }
        ),
    )
    return run.out / "table.html"


def _number(value: float, digits: int = 3) -> str:
    small = value != 0 and abs(value) < 0.005
    return f"{value:.2g}" if small else format_number(value, digits)


def _with_spread(mean: float, sd: float) -> str:
    return _number(mean) if math.isnan(sd) else f"{_number(mean)} ± {_number(sd)}"


def _numbers(ours: Sequence[Cell]) -> Table:
    rows = [
        [
            one.row,
            one.dataset,
            one.metric.removeprefix("test_"),
            _with_spread(one.ours, one.sd),
            str(one.seeds),
            _with_spread(one.printed, one.printed_sd) if not math.isnan(one.printed) else "–",
            format_signed(one.difference),
            one.verdict + (f": {one.why}" if one.verdict == "cannot be compared" else ""),
        ]
        for one in ours
    ]
    columns = ["row", "data set", "metric", "ours", "seeds", "printed", "difference", "verdict"]
    return Table(columns, rows, "ours beside the paper's", in_terminal=True, narrow=frozenset({"seeds", "difference"}))


def _effects(compared: Sequence[Effect]) -> Table:
    rows = [
        [
            f"{one.row} − {one.reference}",
            one.dataset,
            one.metric.removeprefix("test_"),
            format_signed(one.ours) if abs(one.ours) >= 0.001 else f"{one.ours:+.1e}",
            format_signed_interval(one.interval),
            format_p(one.p),
            format_signed(one.printed),
            f"{one.verdict} ({one.why})",
        ]
        for one in compared
    ]
    columns = ["effect", "data set", "metric", "ours", "95 % interval", "paired p", "printed", "verdict"]
    return Table(columns, rows, "effects", in_terminal=True, narrow=frozenset({"paired p"}))
