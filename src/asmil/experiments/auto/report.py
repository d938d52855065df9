"""The page of a search: the answer first, then the ladder of candidates, then how it was done."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from asmil.experiments.auto.findings import (
    CHANCE,
    FEW_EPOCHS_SHARE,
    Findings,
    signed_interval,
    to_json,
)
from asmil.experiments.auto.halving import ranking
from asmil.experiments.auto.search import Search, SearchResult
from asmil.reporting import Block, Cell, Document, Estimate, Figure, Heading, Link, Links, Section, Table, jsonable
from asmil.reporting.document import Row, estimate_cell
from asmil.reporting.drawing import COLORS, GUIDE, TEXT, new_figure, plain_text, svg_text
from asmil.reporting.files import write_document
from asmil.reporting.formats import (
    format_count,
    format_duration,
    format_number,
    format_share,
    format_signed,
)

PAGE = "auto.html"
BUNDLE = "bundle"
EXCEEDED = 1.15
"""A search that takes longer than this times its budget says so."""
OUTER_TITLES = {"procedure": "whole procedure", "attention": "best attention method"}


def write_auto(search: Search, result: SearchResult, findings: Findings) -> tuple[Path, Document]:
    """Write `auto.html`, `auto.md` and `auto.json` into the folder of the search."""
    budget = {"budget_seconds": search.budget.seconds, "seconds_in_all": search.budget.spent}
    data = {**to_json(search, result, findings), "bundle": BUNDLE, **budget}
    document = auto_document(search, result, findings)
    return write_document(document, search.out / PAGE, jsonable(data)), document


def auto_document(search: Search, result: SearchResult, findings: Findings) -> Document:
    """The content of the page."""
    expected = findings.expected
    alarms = []
    if findings.is_chance:
        chance = f"{CHANCE[findings.metric]:g}"
        alarms.append(f"The expected {findings.title} cannot be told from chance ({chance}): do not use this model.")
    return Document(
        kind=f"Best model, {search.kind}",
        title=f"{search.cohort.path.absolute().parent.name}/{search.cohort.path.name}",
        answer=f"{findings.attention_answer} {findings.choice_answer}",
        about=f"{expected.sizes}; these numbers are from patients on whom nothing was trained or chosen.",
        alarms=alarms,
        warnings=_warnings(search, result, findings),
        sections=[
            Section("The chosen model", list(_chosen(search, result, findings))),
            Section("The ladder", [_figure(search, result, findings), _ladder(search, result, findings)]),
            *([Section("Does attention pay?", [_differences(search, findings)])] if findings.differences else []),
            Section("How it was done", list(_design(search, result))),
        ],
        reading=READING,
    )


def _warnings(search: Search, result: SearchResult, findings: Findings) -> list[str]:
    """The most important first: the page unfolds three of them."""
    warnings, budget = [], search.budget
    if findings.is_unstable:
        others = Counter(str(search.candidates[name]) for name in result.methods["procedure"])
        named = ", ".join(f"{name} in {format_count(count, 'fold')}" for name, count in others.most_common())
        warnings.append(
            f"The choice is not stable: outer folds chose {named}, all patients together {findings.chosen}. The "
            f"expected {findings.title} is that of the choices of the outer folds, not that of {findings.chosen}."
        )
    if findings.contradicts:
        kind, outer = ("attention", "worse") if findings.chosen.attends else ("no attention", "better")
        warnings.append(
            f"The choice contradicts the answer: {findings.chosen}, chosen on all patients, has {kind}, but in the "
            f"outer folds attention is {outer} than without. Treat both as uncertain."
        )
    share = result.plan.share
    if share < FEW_EPOCHS_SHARE:
        warnings.append(
            f"Every method was trained for at most {format_share(share)} of its usual epochs, to fit the budget. "
            "Attention methods need more epochs than simple ones, so this favors the simple ones."
        )
    if result.plan.left_out:
        by_reason: dict[str, list[str]] = {}
        for name, reason in result.plan.left_out.items():
            by_reason.setdefault(reason, []).append(str(search.candidates.get(name, name)))
        named = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
        warnings.append(f"Left out: {named}.")
    warnings += result.notes
    if budget.spent > EXCEEDED * budget.seconds:
        warnings.append(
            f"The search took {format_duration(budget.spent)}, longer than its budget of "
            f"{format_duration(budget.seconds)}: the budget was too small for the shortest search, or the machine was "
            "slower than in the trial."
        )
    if any(slide.split for slide in search.cohort.slides):
        warnings.append(
            "The manifest's column `split` was not used: every patient is tested once, and the model is trained on all."
        )
    return [*warnings, *(f"{text[0].upper()}{text[1:]}." for text in search.warnings)]


def _chosen(search: Search, result: SearchResult, findings: Findings) -> Iterator[Block]:
    epochs = findings.chosen.config(search.common, result.plan.share).training.epochs
    about = (f"preset {findings.chosen.preset}", format_count(epochs, "epoch"), "trained on all patients")
    share = findings.resampled.get(findings.chosen.name, math.nan)
    resampled = () if math.isnan(share) else (f"best in {format_share(share)} of resamples of all patients",)
    scale = (0.0, 1.0) if findings.metric != "r2" else None
    yield Table(
        ["method", f"expected {findings.title}", "how sure is the choice", "calibration"],
        [
            [
                Cell(str(findings.chosen), notes=about),
                estimate_cell(findings.performance, scale=scale),
                Cell(f"{findings.won} of {format_count(findings.folds, 'outer fold')}", notes=resampled),
                Cell(findings.calibration),
            ]
        ],
        title="the chosen model",
        caption="Expected performance and calibration are those of the whole procedure, the choice included, on the "
        "patients of the outer folds, which the choice never saw.",
        in_terminal=True,
    )
    if findings.hints:
        yield Heading("What would help")
        yield from findings.hints
        yield Heading("Use it")
    yield f"`asmil predict {search.out / BUNDLE} new_slides/ --out predictions.csv`"
    yield Links(
        [
            Link("Evaluation of the procedure", "outer/procedure/report.html", "all metrics, curves, calibration"),
            Link("Comparison", "outer/comparison.html", "attention, mean pooling and the linear probe, with tests"),
        ]
    )


def _last_scores(result: SearchResult, name: str) -> list[float]:
    """The inner score of a candidate in the last rung that it reached, in every outer fold and on all patients."""
    scores = []
    for history in (*result.choices, result.final):
        reached = [rung[name] for rung in history if name in rung]
        scores += [reached[-1]] if reached and not math.isnan(reached[-1]) else []
    return scores


def _tested(result: SearchResult, findings: Findings, name: str) -> Estimate | None:
    """The metric of a candidate, or of a role, in all outer folds; None if it was not tested in all of them."""
    same = [role for role, methods in result.methods.items() if set(methods) == {name}]
    return next((findings.tested[role] for role in (name, *same) if role in findings.tested), None)


def _ladder(search: Search, result: SearchResult, findings: Findings) -> Table:
    groups = len(result.choices) + 1
    winners = Counter(ranking(history)[0] for history in result.choices)
    rows: list[Row] = []
    for name in result.plan.candidates:
        candidate, scores = search.candidates[name], _last_scores(result, name)
        final = sum(name in history[-1] for history in (*result.choices, result.final))
        is_chosen = name == findings.chosen.name
        tested = _tested(result, findings, name)
        rows.append(
            [
                Cell(str(candidate), notes=("chosen",) if is_chosen else (), strong=is_chosen),
                "yes" if candidate.attends else "no",
                format_number(fmean(scores)) if scores else "–",
                f"{final} of {groups}",
                f"{winners[name]} of {len(result.choices)}",
                "–" if tested is None else estimate_cell(tested),
                format_duration(result.seconds[name]),
            ]
        )
    for role, title in OUTER_TITLES.items():
        if role in findings.tested:
            methods = Counter(str(search.candidates[name]) for name in result.methods[role])
            notes = tuple(f"{method} in {format_count(count, 'fold')}" for method, count in methods.most_common())
            rows.append([Cell(title, notes=notes), "", "–", "–", "–", estimate_cell(findings.tested[role]), ""])
    return Table(
        [
            "candidate",
            "attention",
            f"inner {findings.title}",
            "in the last rung",
            "won",
            f"outer {findings.title}",
            "time",
        ],
        rows,
        title="the ladder",
        caption=f"Inner {findings.title}: on inner folds, which choose, in the last rung that the candidate reached; "
        "different rungs are not comparable. Outer: on the patients of all outer folds, with 95 % interval.",
        in_terminal=True,
        narrow=frozenset({"attention", "in the last rung"}),
    )


def _figure(search: Search, result: SearchResult, findings: Findings) -> Figure:
    """Inner scores of every candidate as dots, and what was tested outside with its interval."""
    rows = [(name, str(search.candidates[name])) for name in result.plan.candidates]
    rows += [(role, title) for role, title in OUTER_TITLES.items() if role in findings.tested]
    with new_figure(7.0, 0.9 + 0.36 * len(rows)) as figure:
        axes = figure.add_subplot()
        for row, (name, _) in enumerate(rows):
            scores = _last_scores(result, name)
            axes.scatter(scores, [row] * len(scores), s=26, color=COLORS[0], alpha=0.55, linewidths=0)
            tested = _tested(result, findings, name)
            if tested is not None:
                low, high = tested.interval if tested.interval.is_defined else (tested.value, tested.value)
                axes.plot([low, high], [row + 0.2] * 2, color=COLORS[1], linewidth=2)
                axes.plot(tested.value, row + 0.2, "D", color=COLORS[1], markersize=5)
        axes.axvline(CHANCE[findings.metric], color=GUIDE, linewidth=1, linestyle="--")
        axes.set_yticks(range(len(rows)), [plain_text(title) for _, title in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(findings.title)
        axes.scatter([], [], s=26, color=COLORS[0], alpha=0.55, label="inner folds, which choose")
        axes.plot([], [], "D-", color=COLORS[1], markersize=5, label="outer folds, with 95 % interval")
        axes.plot([], [], "--", color=GUIDE, label="chance")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.5 / len(rows) + 0.06), ncols=3, labelcolor=TEXT)
        content = svg_text(figure)
    caption = f"One dot per outer fold and one for all patients: the inner {findings.title} in the last rung reached."
    return Figure(content, "The ladder", caption)


def _differences(search: Search, findings: Findings) -> Table:
    rows: list[Row] = []
    for name, estimate in findings.differences.items():
        better = "attention" if estimate.interval.low > 0 else str(search.candidates[name])
        conclusion = f"{better} is better" if estimate.interval.excludes_zero else "undecided"
        rows.append(
            [
                f"attention minus {search.candidates[name]}",
                format_signed(estimate.value),
                signed_interval(estimate),
                conclusion,
            ]
        )
    return Table(
        ["difference", findings.title, "95 % interval", "conclusion"],
        rows,
        caption="In every outer fold: its best attention method, chosen on inner folds, against simple methods that "
        "weight all tiles alike. Attention pays if it is better than both. Bootstrap over patients; one seed per fold.",
    )


def _design(search: Search, result: SearchResult) -> Iterator[Block]:
    plan, rungs, share = result.plan, len(result.final), result.plan.share
    yield f"The cohort: {'; '.join(search.facts)}."
    halving = (
        ": first all of them on one inner fold with few epochs, then the better half on "
        f"{format_count(plan.design.inner, 'inner fold')} with twice as many, and so on"
    )
    yield (
        f"{format_count(len(result.choices), 'outer fold')} of whole patients. In each, successive halving chose among "
        f"{format_count(len(plan.candidates), 'candidate')} in {format_count(rungs, 'rung')}"
        f"{halving if rungs > 1 else ''}. The winner, the best attention method, mean pooling and the linear probe "
        "were then trained on all these patients and tested on the others. The same choice on all patients named the "
        "method."
    )
    epochs = {search.candidates[name].config(search.common, share).training.epochs for name in plan.candidates}
    spread = f"{min(epochs)} to {max(epochs)}" if len(epochs) > 1 else f"{min(epochs)}"
    yield (
        f"Last rung, tests and model: {spread} epochs, the last one is kept; no validation slides. Budget: "
        f"{format_duration(search.budget.seconds)}, used: {format_duration(search.budget.spent)}."
    )


READING = (
    "The expected performance belongs to the procedure, which may choose different methods in different outer "
    "folds. It is an estimate for patients like those of this cohort, not for other hospitals.",
    "Intervals: bootstrap over patients. Every outer fold was trained with one seed, so they do not include the "
    "variation between seeds.",
)
