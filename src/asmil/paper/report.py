"""A table of the paper with our numbers beside it, as a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from asmil.paper.comparing import Cell, Effect, Verdict, cells, effects
from asmil.paper.printed import printed
from asmil.paper.running import PaperRun
from asmil.reporting import Document, Folded, Section, Table, jsonable
from asmil.reporting.files import write_document
from asmil.reporting.formats import format_count, format_number, format_p, format_signed, format_signed_interval

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
    ours, compared = _compare(run, results)
    warnings = [STAND_IN] if run.synthetic else []
    if run.synthetic and run.site_bias:
        warnings.append(
            f"Site bias {run.site_bias:g}: the site of this share of the training patients is chosen by their label, "
            "a shortcut that does not help on the test sites."
        )
    if run.size == "small":
        warnings.append(SMALL)
    table = printed()[0].get(recipe.id)
    doubts = [] if table is None else [f"In print: {doubt}." for doubt in table.doubts]
    sections = [Section("Numbers", [_overview(ours, recipe.metrics)])]
    if compared:
        clear = [effect for effect in compared if effect.interval.excludes_zero]
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
        about=f"{format_count(len(results), 'training')}; size {run.size}; preset {run.preset} for ASMIL"
        + (f"; site bias {run.site_bias:g}" if run.synthetic else ""),
        warnings=[*warnings, *doubts],
        reading=[
            "An effect is a row minus its reference, paired by seed, with a 95 % interval by Student's t over seeds; "
            "it is clear if the interval excludes 0.",
            "agrees: the interval excludes 0 on the side of the printed difference; differs: on the other side, or no "
            "effect where the paper prints more than 0.02; undecided: anything else.",
        ],
    )


def _compare(run: PaperRun, results: pd.DataFrame) -> tuple[list[Cell], list[Effect]]:
    return cells(run.recipe, results, run.synthetic), effects(run.recipe, results, run.size == "quick")


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
    metric = next((name for name in MAIN_METRICS if any(cell.metric == name for cell in ours)), None)
    if metric is None:
        return ""
    best = []
    for dataset in dict.fromkeys(cell.dataset for cell in ours):
        rows = [cell for cell in ours if cell.metric == metric and cell.dataset == dataset]
        if rows:
            highest = _number(max(cell.ours for cell in rows))
            named = [cell.row for cell in rows if _number(cell.ours) == highest]
            others = f" and {format_count(len(named) - 1, 'other row')}" if len(named) > 1 else ""
            best.append(f"{named[0]}{others} on {dataset} ({highest})")
    return f"Highest mean {MAIN_METRICS[metric]}: {', '.join(best)}."


def _counted_effects(compared: Sequence[Effect]) -> str:
    if not compared:
        return ""
    counts: Counter[Verdict] = Counter(effect.verdict for effect in compared if effect.verdict != "cannot be compared")
    if counts:
        words: dict[Verdict, str] = {"agrees": "as printed", "differs": "absent or reversed", "undecided": "undecided"}
        counted = ", ".join(f"{counts[verdict]} {word}" for verdict, word in words.items())
        return f"Of {format_count(sum(counts.values()), 'effect')} in print: {counted}."
    if any(not math.isnan(effect.printed) for effect in compared):
        return "The effects in print cannot be compared: fewer than two paired seeds."
    clear = sum(effect.interval.excludes_zero for effect in compared)
    return f"The paper prints no numbers for it; {clear} of {format_count(len(compared), 'effect')} are clear."


def write_paper(run: PaperRun, results: pd.DataFrame) -> Path:
    """Write `table.html`, `table.md` and `table.json` into the folder of the run; returns the page."""
    ours, compared = _compare(run, results)
    numbers = jsonable({**run.about(), "cells": ours, "effects": compared})
    return write_document(paper_document(run, results), run.out / "table.html", numbers)


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
    known = [name for name in metrics if any(cell.metric == name for cell in ours)]
    in_print = [name for name in known if any(cell.metric == name and not math.isnan(cell.printed) for cell in ours)]
    crowded = len(in_print) > 1  # 80 characters have no room for the spread, which the table of every number has
    by_row: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in ours:
        by_row.setdefault((cell.row, cell.dataset), {})[cell.metric] = cell
    rows = []
    for (row, dataset), of_row in by_row.items():
        shown = [row, dataset]
        for name in known:
            measured = of_row.get(name)
            sd = math.nan if crowded or measured is None else measured.sd
            shown.append("–" if measured is None else _with_spread(measured.ours, sd))
            if name in in_print:
                shown.append("–" if measured is None or math.isnan(measured.printed) else _printed(measured))
        rows.append(shown)
    columns, left_out = ["row", "data set"], set()
    for position, name in enumerate(known):
        titles = [name.removeprefix("test_"), *([f"printed {name.removeprefix('test_')}"] if name in in_print else [])]
        columns += titles
        left_out |= set(titles) if position >= METRICS_IN_TERMINAL else set()
    title = f"our mean{'' if crowded else ' ± sd'} over seeds" + (", and the printed mean" if in_print else "")
    return Table(columns, rows, title, in_terminal=True, narrow=frozenset(left_out))


def _printed(cell: Cell) -> str:
    verdict = "" if cell.verdict == "cannot be compared" else f" ({cell.verdict})"
    return f"{_number(cell.printed)}{verdict}"


def _numbers(ours: Sequence[Cell]) -> Table:
    rows = [
        [
            cell.row,
            cell.dataset,
            cell.metric.removeprefix("test_"),
            _with_spread(cell.ours, cell.sd),
            str(cell.seeds),
            _with_spread(cell.printed, cell.printed_sd) if not math.isnan(cell.printed) else "–",
            format_signed(cell.difference),
            cell.verdict + (f": {cell.why}" if cell.verdict == "cannot be compared" else ""),
        ]
        for cell in ours
    ]
    columns = ["row", "data set", "metric", "ours", "seeds", "printed", "difference", "verdict"]
    return Table(columns, rows, "ours beside the paper's")


def _effects(compared: Sequence[Effect], title: str, in_terminal: bool) -> Table:
    rows = [
        [
            f"{effect.row} − {effect.reference}",
            effect.dataset,
            effect.metric.removeprefix("test_"),
            _signed(effect.ours),
            format_signed_interval(effect.interval),
            format_p(effect.p),
            format_signed(effect.printed),
            effect.verdict,
            effect.why,
        ]
        for effect in compared
    ]
    columns = ["effect", "data set", "metric", "ours", "95 % interval", "paired p", "printed", "verdict", "why"]
    return Table(columns, rows, title, in_terminal=in_terminal, narrow=frozenset({"paired p", "why"}))
