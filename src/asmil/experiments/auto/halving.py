"""Successive halving and the design that fits a time budget: pure functions on scores and seconds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

FINALISTS = 2
"""Candidates that reach the last rung."""
INNER_FOLDS = 3
"""Inner folds that the patients of an outer fold are divided into; a design may use only some of them."""
MARGIN = 0.85
"""Share of the budget that a design may take by its estimate."""


@dataclass(frozen=True)
class Design:
    """How much is trained.

    outer: outer folds; inner: inner folds that are used after the first rung
    share: of the epochs that the settings ask for
    """

    outer: int
    inner: int
    share: float


DESIGNS = (
    Design(5, 3, 1.0),
    Design(5, 3, 0.6),
    Design(5, 3, 0.4),
    Design(5, 2, 0.4),
    Design(5, 2, 0.2),
    Design(3, 2, 0.2),
    Design(3, 2, 0.1),
)
"""From the most to the least thorough; the first that fits the budget is used, with as many epochs as fit."""
ADEQUATE = 5
"""So many of these designs train long enough to compare methods; candidates are left out before others are used."""


@dataclass(frozen=True)
class Rung:
    """One round of the choice: so many candidates, on so many inner folds, with a share of the epochs."""

    candidates: int
    inner: int
    share: float


def rungs_of(candidates: int, design: Design) -> list[Rung]:
    """The rungs of a choice: half of the candidates go on, and the epochs double.

    >>> [(rung.candidates, rung.inner, rung.share) for rung in rungs_of(7, Design(5, 3, 1.0))]
    [(7, 1, 0.25), (4, 3, 0.5), (2, 3, 1.0)]
    """
    counts = [candidates]
    while counts[-1] > FINALISTS:
        counts.append(math.ceil(counts[-1] / 2))
    last = len(counts) - 1
    return [
        Rung(count, 1 if rung == 0 < last else design.inner, design.share / 2 ** (last - rung))
        for rung, count in enumerate(counts)
    ]


def ranked(scores: Mapping[str, float]) -> list[str]:
    """The names, the best score first; ties keep the order of the mapping, and undefined scores are last."""
    return sorted(scores, key=lambda name: (math.isnan(scores[name]), -scores[name]))


def ranking(history: Sequence[Mapping[str, float]]) -> list[str]:
    """All candidates of a choice, the best first: by the last rung they reached, then by their score there.

    >>> ranking([{"a": 0.9, "b": 0.8, "c": 0.7}, {"a": 0.6, "b": 0.7}])
    ['b', 'a', 'c']
    """
    order: dict[str, None] = {}
    for scores in reversed(history):
        order |= dict.fromkeys(ranked({name: score for name, score in scores.items() if name not in order}))
    return list(order)


def seconds_of(
    design: Design,
    full: Mapping[str, float],
    simple: Collection[str],
    fixed_s: float = 0.0,
    alone: Mapping[str, float] | None = None,
) -> float:
    """The expected seconds of a whole search on one worker.

    full: seconds of a training of each candidate on all patients, with all epochs, at the same time as others
    simple: the candidates that every outer fold trains, besides its best attention method and its choice
    fixed_s: seconds of a training besides its epochs
    alone: like `full`, of a training that runs alone, as that of the final model; None: the same
    """
    alone = full if alone is None else alone
    mean = sum(full.values()) / len(full)
    others = [seconds for name, seconds in full.items() if name not in simple] or [mean]
    rungs, inner_train = rungs_of(len(full), design), 1 - 1 / INNER_FOLDS
    choice = sum(rung.candidates * rung.inner * rung.share for rung in rungs) * mean * inner_train
    trainings = sum(rung.candidates * rung.inner for rung in rungs) * (design.outer + 1)
    trainings += design.outer * (len(simple) + 2) + 1
    tested = design.share * (sum(full[name] for name in simple) + 1.5 * sum(others) / len(others))
    outer_train = 1 - 1 / design.outer
    model = design.share * max(alone[name] for name in full)
    epochs = design.outer * outer_train * (choice + tested) + choice + model
    return epochs + trainings * fixed_s


def fitting_design(
    full: Mapping[str, float],
    simple: Collection[str],
    budget_s: float,
    outer: int,
    inner: int,
    fixed_s: float = 0.0,
    least_share: float = 0.0,
    alone: Mapping[str, float] | None = None,
) -> tuple[Design, list[str]]:
    """The most thorough design that fits the budget, and the candidates that it must leave out.

    outer, inner: the most folds that the cohort allows
    least_share: of the epochs; fewer would teach nothing
    fixed_s, alone: see `seconds_of`
    The most expensive candidates are left out before the others are trained for too few epochs, but never the simple
    ones and the cheapest of the others.
    """
    costly = sorted((name for name in full if name not in simple), key=lambda name: -full[name])
    allowed = [Design(min(d.outer, outer), min(d.inner, inner), max(d.share, least_share)) for d in DESIGNS]
    for designs in (allowed[:ADEQUATE], allowed[ADEQUATE:]):
        for count in range(max(1, len(costly))):
            kept = {name: seconds for name, seconds in full.items() if name not in costly[:count]}
            for design in designs:
                if seconds_of(design, kept, simple, fixed_s, alone) <= MARGIN * budget_s:
                    return _with_more_epochs(design, kept, simple, budget_s, fixed_s, alone), costly[:count]
    return allowed[-1], costly[:-1]


def _with_more_epochs(
    design: Design,
    full: Mapping[str, float],
    simple: Collection[str],
    budget_s: float,
    fixed_s: float,
    alone: Mapping[str, float] | None,
) -> Design:
    """A design that fits, with the largest share of the epochs that does; seconds are linear in the share."""
    fixed = seconds_of(replace(design, share=0.0), full, simple, fixed_s, alone)
    epochs = seconds_of(design, full, simple, fixed_s, alone) - fixed
    return replace(design, share=min(1.0, design.share * (MARGIN * budget_s - fixed) / epochs))
