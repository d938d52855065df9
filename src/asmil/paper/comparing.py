"""Our numbers beside the printed ones: differences with intervals, paired tests, and verdicts.

Two questions are kept apart. *Absolute*: is our number the printed one? That needs the paper's data; on a synthetic
stand-in the answer is always "cannot be compared". *Effect*: does a row differ from its reference row as the paper
says? Our difference is paired by seed.

    absolute   agrees: the 95 % interval of ours - printed (Welch, the printed sd over the printed number of seeds)
               contains 0; differs: it does not
    effect     agrees: our 95 % interval (paired t over seeds) excludes 0, with the sign of the printed difference
               differs: it excludes 0 with the other sign, or lies within 0.01 of 0 where the paper prints more than
               0.02
               undecided: anything else
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from asmil.paper.printed import printed
from asmil.paper.recipes import Recipe, RecipeRow, result_column
from asmil.reporting import Interval
from asmil.reporting.estimate import UNDEFINED

Verdict = Literal["agrees", "differs", "undecided", "cannot be compared"]
NEGLIGIBLE, CLAIMED = 0.01, 0.02


@dataclass(frozen=True)
class Cell:
    """A number of ours beside a printed one."""

    row: str
    dataset: str
    metric: str
    ours: float
    sd: float
    seeds: int
    printed: float
    printed_sd: float
    difference: float
    interval: Interval
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Effect:
    """A row minus its reference row, ours and printed (nan: not printed)."""

    row: str
    reference: str
    dataset: str
    metric: str
    ours: float
    interval: Interval
    p: float
    seeds: int
    printed: float
    verdict: Verdict
    why: str


def t_interval(values: Sequence[float]) -> tuple[Interval, float]:
    """95 % interval of the mean and two-sided p, by Student's t; undefined for fewer than two values."""
    known = np.asarray(values, dtype=np.float64)
    if len(known) < 2:
        return UNDEFINED, math.nan
    mean, error = float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known)))
    if error == 0:
        return Interval(mean, mean), 1.0 if mean == 0 else 0.0
    half = float(stdtrit(len(known) - 1, 0.975)) * error
    return Interval(mean - half, mean + half), float(2 * stdtr(len(known) - 1, -abs(mean / error)))


def welch_interval(ours: Sequence[float], mean: float, sd: float, n: int) -> Interval:
    """95 % interval of our mean minus a printed mean of n values with a printed sd (nan: taken as exact)."""
    known = np.asarray(ours, dtype=np.float64)
    if len(known) < 2:
        return UNDEFINED
    mine = float(known.var(ddof=1) / len(known))
    theirs = 0.0 if math.isnan(sd) else sd**2 / n
    difference = float(known.mean()) - mean
    if mine + theirs == 0:
        return Interval(difference, difference)
    df = (mine + theirs) ** 2 / (mine**2 / (len(known) - 1) + (theirs**2 / (n - 1) if theirs else 0.0) or 1e-300)
    half = float(stdtrit(df, 0.975)) * math.sqrt(mine + theirs)
    return Interval(difference - half, difference + half)


def cells(recipe: Recipe, results: pd.DataFrame, synthetic: bool) -> list[Cell]:
    """Every number of ours, beside the printed one where there is one."""
    table = printed()[0].get(recipe.id)
    compared = []
    for row, dataset, metric in product(recipe.rows, recipe.datasets, recipe.metrics):
        values = seed_values(results, row, dataset, metric)
        if values.empty:
            continue
        ours, n = float(values.mean()), len(values)
        sd = float(values.std(ddof=1)) if n > 1 else math.nan
        mean, printed_sd = _printed_cell(recipe, row, dataset, metric)
        seeds = table.seeds if table is not None else 5
        interval = UNDEFINED if math.isnan(mean) else welch_interval(values.to_list(), mean, printed_sd, seeds)
        judged = _judge_cell(interval, mean, n, synthetic)
        numbers = (ours, sd, n, mean, printed_sd, ours - mean)
        compared.append(Cell(row.name, dataset, metric, *numbers, interval, *judged))
    return compared


def effects(recipe: Recipe, results: pd.DataFrame, smoke: bool = False) -> list[Effect]:
    """Every row minus its reference, paired by seed. smoke: a size from which nothing is concluded."""
    by_name = {row.name: row for row in recipe.rows}
    compared = []
    for row, dataset, metric in product(recipe.rows, recipe.datasets, recipe.metrics):
        if row.reference is None:
            continue
        pair = (row, by_name[row.reference])
        mine, theirs = (seed_values(results, either, dataset, metric) for either in pair)
        differences = (mine - theirs).dropna()
        if differences.empty:
            continue
        interval, p = t_interval(differences.to_list())
        mine_printed, theirs_printed = (_printed_cell(recipe, either, dataset, metric)[0] for either in pair)
        said = mine_printed - theirs_printed
        verdict, why = judge_effect(interval, said)
        if smoke:
            verdict, why = "cannot be compared", "smoke size"
        numbers = (float(differences.mean()), interval, p, len(differences), said)
        compared.append(Effect(row.name, row.reference, dataset, metric, *numbers, verdict, why))
    return compared


def judge_effect(interval: Interval, said: float) -> tuple[Verdict, str]:
    """Whether an effect of ours agrees with a printed difference."""
    if math.isnan(said):
        return "cannot be compared", "the paper prints no number"
    if not interval.is_defined:
        return "cannot be compared", "fewer than two paired seeds"
    if interval.excludes_zero:
        same = math.copysign(1, interval.low) == math.copysign(1, said) and said != 0
        return ("agrees", "same direction") if same else ("differs", "opposite direction" if said else "paper: none")
    if max(abs(interval.low), abs(interval.high)) <= NEGLIGIBLE and abs(said) > CLAIMED:
        return "differs", "no effect here"
    return "undecided", "the interval contains 0"


def _judge_cell(interval: Interval, mean: float, seeds: int, synthetic: bool) -> tuple[Verdict, str]:
    if math.isnan(mean):
        return "cannot be compared", "the paper prints no number"
    if synthetic:
        return "cannot be compared", "synthetic stand-in"
    if seeds < 2:
        return "cannot be compared", "one seed"
    return ("differs", "the interval excludes 0") if interval.excludes_zero else ("agrees", "the interval contains 0")


def seed_values(results: pd.DataFrame, row: RecipeRow, dataset: str, metric: str) -> pd.Series[float]:
    """Our values of a metric by seed, the mean over folds."""
    if metric not in results:
        return pd.Series(dtype=np.float64)
    chosen = (results["variant"] == row.name) & (results["cohort"] == cohort_name(dataset, row.backbone))
    return results[chosen].groupby("seed")[metric].mean().dropna()


def cohort_name(dataset: str, backbone: str) -> str:
    """The name of a cohort in a sweep."""
    return f"{dataset}-{backbone}"


def _printed_cell(recipe: Recipe, row: RecipeRow, dataset: str, metric: str) -> tuple[float, float]:
    table = printed()[0].get(recipe.id)
    if table is None or row.printed is None:
        return math.nan, math.nan
    for column in table.columns:
        if column.dataset == dataset and result_column(column.metric) == metric:
            mean, sd = row.printed.values.get(column.key, (math.nan, math.nan))
            return (mean / 100, sd / 100) if column.unit == "%" else (mean, sd)
    return math.nan, math.nan
