"""A table of the paper with our numbers beside it, as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from asmil.files import write_json, write_text
from asmil.paper.comparing import Cell, Effect, Verdict, cells, effects
from asmil.paper.printed import printed
from asmil.paper.running import PaperRun
from asmil.reporting import Document, Folded, Section, Table, jsonable, markdown_document
from asmil.reporting.formats import format_count, format_number, format_p, format_signed, format_signed_interval
from asmil.reporting.page import html_document

STAND_IN = (
    "SYNTHETIC STAND-IN: these cohorts have the sizes, classes and sites of the paper's data, but synthetic features. "
    "The numbers say nothing about the data sets themselves."
)
SMOKE = "A smoke size (--quick): for trying the recipe, not for conclusions."
SMALL = "Reduced size (--small): smaller cohorts, fewer epochs and seeds than in the paper."
MAIN_METRICS = {"test_auc": "AUC", "test_c_index": "C-index", "tile_dice": "tile Dice"}
"""Metrics by which rows are ranked in the answer, the first that a table has."""
METRICS_IN_TERMINAL, MOST_EFFECTS = 3, 24


def paper_document(run: PaperRun, results: pd.DataFrame) -> Document:
    """Our numbers beside the printed ones, and the effects of rows against their references."""
    recipe, smoke = run.recipe, run.size == "quick"
    ours, compared = cells(recipe, results, run.synthetic), effects(recipe, results, smoke)
    warnings = [STAND_IN] if run.synthetic else []
    if run.size == "small":
        warnings.append(SMALL)
    table = printed()[0].get(recipe.id)
    doubts = [] if table is None else [f"In print: {doubt}." for doubt in table.doubts]
    sections = [Section("Numbers", [_overview(ours, recipe.metrics)])]
    if compared:
        clear = [one for one in compared if one.interval.excludes_zero]
        short = len(compared) > MOST_EFFECTS
        sections.append(Section("Effects", [_effects(compared, "effects", in_terminal=not smoke and not short)]))
        if short and clear and not smoke:
            title = f"clear effects: {len(clear)} of {len(compared)} (all in table.html)"
            sections[-1] = Section("Effects", [_effects(clear, title, in_terminal=True), *sections[-1].blocks])
    sections.append(Section("Every number", [Folded("All numbers, with the verdict on each", [_numbers(ours)])]))
    return Document(
        kind="table of the paper" + (" (synthetic stand-in)" if run.synthetic else ""),
        title=f"{recipe.id}: {recipe.title}",
        answer=answer(run, len(results), ours, compared),
        sections=sections,
        about=f"{format_count(len(results), 'training')}; size {run.size}; preset {run.preset} for ASMIL",
        warnings=[*warnings, *doubts],
        reading=[
            "An effect is a row minus its reference, paired by seed, with a 95 % interval by Student's t over seeds; "
            "it is clear if the interval excludes 0.",
            "agrees: the interval excludes 0 on the side of the printed difference; differs: on the other side, or no "
            "effect where the paper prints more than 0.02; undecided: anything else.",
        ],
    )


def answer(run: PaperRun, trainings: int, ours: Sequence[Cell], compared: Sequence[Effect]) -> str:
    """The result in words: which rows are best, and how many effects are as printed."""
    where = "on synthetic stand-ins" if run.synthetic else "on this cohort"
    finished = f"{run.recipe.id} {where}: {format_count(trainings, 'training')}."
    if not ours:
        return f"{finished} There is nothing to compare yet."
    if run.size == "quick":
        return f"{finished} The recipe runs, but a smoke size (--quick) allows no conclusions about the methods."
    return " ".join(filter(None, [finished, _best_rows(ours), _counted_effects(compared)]))


def _best_rows(ours: Sequence[Cell]) -> str:
    """The highest mean of the main metric on each data set; empty if none of the metrics is a score of slides."""
    metric = next((name for name in MAIN_METRICS if any(one.metric == name for one in ours)), None)
    if metric is None:
        return ""
    found = []
    for dataset in dict.fromkeys(one.dataset for one in ours):
        rows = [one for one in ours if one.metric == metric and one.dataset == dataset]
        if rows:
            highest = _number(max(one.ours for one in rows))
            named = [one.row for one in rows if _number(one.ours) == highest]
            others = f" and {format_count(len(named) - 1, 'other row')}" if len(named) > 1 else ""
            found.append(f"{named[0]}{others} on {dataset} ({highest})")
    return f"Highest mean {MAIN_METRICS[metric]}: {', '.join(found)}."


def _counted_effects(compared: Sequence[Effect]) -> str:
    if not compared:
        return ""
    counts: Counter[Verdict] = Counter(one.verdict for one in compared if one.verdict != "cannot be compared")
    if counts:
        words: dict[Verdict, str] = {
            "agrees": "as printed",
            "differs": "absent or reversed",
            "undecided": "undecided",
        }
        counted = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items())
        return f"Of {format_count(sum(counts.values()), 'effect')} in print: {counted}."
    if any(not math.isnan(one.printed) for one in compared):
        return "The effects in print cannot be compared: fewer than two paired seeds."
    clear = sum(one.interval.excludes_zero for one in compared)
    return f"The paper prints no numbers for it; {clear} of {format_count(len(compared), 'effect')} are clear."


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


def _signed(value: float) -> str:
    small = value != 0 and abs(value) < 0.001
    return f"{value:+.1e}".replace("-", "−", value < 0) if small else format_signed(value)


def _with_spread(mean: float, sd: float) -> str:
    return _number(mean) if math.isnan(sd) else f"{_number(mean)} ± {_number(sd)}"


def _overview(ours: Sequence[Cell], metrics: Sequence[str]) -> Table:
    """One line for each row and data set: our mean of every metric, and the printed one beside it."""
    known = [name for name in metrics if any(one.metric == name for one in ours)]
    in_print = [name for name in known if any(one.metric == name and not math.isnan(one.printed) for one in ours)]
    crowded = len(in_print) > 1  # 80 characters have no room for the spread, which the table of every number has
    by_place: dict[tuple[str, str], dict[str, Cell]] = {}
    for one in ours:
        by_place.setdefault((one.row, one.dataset), {})[one.metric] = one
    rows = []
    for (row, dataset), found in by_place.items():
        shown = [row, dataset]
        for name in known:
            cell = found.get(name)
            shown.append("–" if cell is None else _with_spread(cell.ours, math.nan if crowded else cell.sd))
            if name in in_print:
                shown.append("–" if cell is None or math.isnan(cell.printed) else _printed(cell))
        rows.append(shown)
    columns, left_out = ["row", "data set"], set()
    for place, name in enumerate(known):
        titles = [name.removeprefix("test_"), *([f"printed {name.removeprefix('test_')}"] if name in in_print else [])]
        columns += titles
        left_out |= set(titles) if place >= METRICS_IN_TERMINAL else set()
    title = f"our mean{'' if crowded else ' ± sd'} over seeds" + (", and the printed mean" if in_print else "")
    return Table(columns, rows, title, in_terminal=True, narrow=frozenset(left_out))


def _printed(cell: Cell) -> str:
    verdict = "" if cell.verdict == "cannot be compared" else f" ({cell.verdict})"
    return f"{_number(cell.printed)}{verdict}"


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
    return Table(columns, rows, "ours beside the paper's")


def _effects(compared: Sequence[Effect], title: str, in_terminal: bool) -> Table:
    rows = [
        [
            f"{one.row} − {one.reference}",
            one.dataset,
            one.metric.removeprefix("test_"),
            _signed(one.ours),
            format_signed_interval(one.interval),
            format_p(one.p),
            format_signed(one.printed),
            one.verdict,
            one.why,
        ]
        for one in compared
    ]
    columns = ["effect", "data set", "metric", "ours", "95 % interval", "paired p", "printed", "verdict", "why"]
    return Table(columns, rows, title, in_terminal=in_terminal, narrow=frozenset({"paired p", "why"}))
