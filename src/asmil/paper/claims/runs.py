"""Claims that trainings decide: on synthetic stand-ins, from the results of `asmil paper`.

A difference of two rows is averaged over data sets for every seed; its 95 % interval and its p-value are Student's t
over seeds. Divergences (JSD) are compared by their ratio, on the logarithm. *Clear* means that p is below 0.05 after
Holm's correction over all differences of the claim, with at least three seeds. Unless a rule says otherwise, a claim is

    supported       if every difference that it names was measured and is clear in the claimed direction
    not supported   if one is clear in the other direction, or if all are measured and negligible (their intervals lie
                    within 0.01 of 0)
    undecided       otherwise: a difference that is not shown decides nothing

Claims that need no other rule are data: a `Comparison` in `data/claims.yaml`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from asmil.evaluation.statistics.p_values import holm
from asmil.paper.claims.measured import Measured
from asmil.paper.claims.ruling import Ruling, Verdict, ruled
from asmil.paper.comparing import NEGLIGIBLE, seed_values, t_interval
from asmil.paper.recipes import RECIPES, RecipeRow
from asmil.reporting import Interval
from asmil.reporting.formats import format_count, format_p
from asmil.settings.config import Settings

FEWEST_SEEDS = 3
SIGNIFICANT = 0.05
FLAT = 0.8
"""Effective share from which attention counts as flat: a flat map has a low JSD whatever the model does."""
SHOWN = 4
"""Differences that a reason lists; the others are counted."""


@dataclass(frozen=True)
class Difference:
    """A difference of two rows in a metric.

    name: as text; cell: the data set and metric, or only the metric where data sets are pooled
    mean, interval: of the difference, or of the logarithm of the ratio (is_ratio); p: two-sided
    """

    name: str
    cell: tuple[str, ...]
    mean: float
    interval: Interval
    p: float
    seeds: int
    is_ratio: bool = False

    @property
    def sign(self) -> int:
        """1 or -1 where it is clear, else 0."""
        clear = self.seeds >= FEWEST_SEEDS and self.p < SIGNIFICANT
        return int(math.copysign(1, self.mean)) if clear else 0

    @property
    def negligible(self) -> bool:
        """Whether its interval lies within the negligible range."""
        return (
            self.seeds >= FEWEST_SEEDS
            and self.interval.is_defined
            and max(abs(self.interval.low), abs(self.interval.high)) <= NEGLIGIBLE
        )

    def __str__(self) -> str:
        values = (self.mean, self.interval.low, self.interval.high)
        mean, low, high = (f"{math.exp(value):.2g}" if self.is_ratio else _short(value) for value in values)
        return f"{self.name} {'ratio ' if self.is_ratio else ''}{mean} [{low}, {high}], p {format_p(self.p)}"


class Missing(Exception):
    """Results of trainings that a rule needs are missing."""


def _short(value: float) -> str:
    return f"{value:+.1e}" if value and abs(value) < 0.001 else f"{value:+.3f}"


def _row(table: str, name: str) -> RecipeRow:
    return next(row for row in RECIPES[table].rows if row.name == name)


def _paired(
    measured: Measured, table: str, row: str, other: str, metric: str, datasets: Sequence[str] = ()
) -> pd.Series[float]:
    """Row minus other, the mean over data sets for every seed that all of them have; logarithms of a divergence."""
    results = measured.results(table)
    differences = []
    for dataset in datasets or RECIPES[table].datasets:
        mine, theirs = (seed_values(results, _row(table, name), dataset, metric) for name in (row, other))
        if _is_ratio(metric):
            mine, theirs = (values[values > 0].map(math.log) for values in (mine, theirs))
        difference = (mine - theirs).dropna()
        if len(difference):
            differences.append(difference)
    if not differences:
        raise Missing(f"no results yet of {row} and {other} in {table} ({metric})")
    return pd.concat(differences, axis=1).dropna().mean(axis=1)


def _is_ratio(metric: str) -> bool:
    return metric.startswith("jsd")


def _difference(name: str, values: pd.Series[float], metric: str = "", dataset: str = "") -> Difference:
    interval, p = t_interval(values.to_list())
    cell = (dataset, metric)
    return Difference(name, cell, float(values.mean()), interval, p, len(values), _is_ratio(metric))


def pooled(
    measured: Measured, table: str, row: str, other: str, metric: str, datasets: Sequence[str] = ()
) -> Difference:
    """Row minus other in a metric, over the named data sets or all of the table."""
    dataset = datasets[0] if len(datasets) == 1 else ""
    where = f" on {dataset}" if dataset else ""
    name = f"{row} − {other}{where}, {metric.removeprefix('test_')}"
    return _difference(name, _paired(measured, table, row, other, metric, datasets), metric, dataset)


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with Holm's p-values; one that has no p-value (a single seed) keeps none and counts for none."""
    tested = [difference for difference in differences if not math.isnan(difference.p)]
    adjusted = iter(holm([difference.p for difference in tested]).tolist() if tested else ())
    return [d if math.isnan(d.p) else replace(d, p=next(adjusted)) for d in differences]


def mean_of(measured: Measured, table: str, row: str, metric: str) -> float:
    """The mean over data sets and seeds."""
    results = measured.results(table)
    means = [seed_values(results, _row(table, row), dataset, metric).mean() for dataset in RECIPES[table].datasets]
    known = [value for value in means if not math.isnan(value)]
    if not known:
        raise Missing(f"no results yet of {row} in {table} ({metric})")
    return float(np.mean(known))


def _decide(measured: Measured, table: str, why: str, supported: bool, refuted: bool) -> Ruling:
    """By the trainings of a table; undecided if they neither support the claim nor refute it."""
    verdict: Verdict = "not supported" if refuted else "supported" if supported else "undecided"
    return Ruling(verdict, "run", why, measured.where(table))


def listed(differences: Sequence[Difference]) -> str:
    """The differences with the smallest p-values, and how many others there are."""
    shown = sorted(differences, key=lambda difference: (math.isnan(difference.p), difference.p))[:SHOWN]
    others = [f"{len(differences) - SHOWN} more"] if len(differences) > SHOWN else []
    return "; ".join([*map(str, shown), *others])


class Comparison(Settings):
    """Rows of a table, each compared with another row, in every metric.

    best: instead of pairs: a row that is compared with all other methods on the same features
    allowed: other methods that may be better than `best`
    each: in every data set by itself instead of pooled
    paired_by: what differences are averaged over; folds: those of all cohorts, for tables with one seed
    """

    table: str
    pairs: tuple[tuple[str, str], ...] = ()
    best: str | None = None
    allowed: int = 0
    metrics: tuple[str, ...] = ("test_f1", "test_auc")
    direction: Literal["higher", "lower"] = "higher"
    datasets: tuple[str, ...] = ()
    each: bool = False
    paired_by: Literal["seed", "fold"] = "seed"

    def all_pairs(self) -> Sequence[tuple[str, str]]:
        """The pairs, or the best row with each of the others."""
        if self.best is None:
            return self.pairs
        best = _row(self.table, self.best)
        others = [row for row in RECIPES[self.table].rows if row.backbone == best.backbone and row.method != "asmil"]
        return [(best.name, row.name) for row in others]

    def decide(self, measured: Measured) -> Ruling:
        groups = [[name] for name in self.datasets or RECIPES[self.table].datasets] if self.each else [self.datasets]
        wanted = list(product(self.all_pairs(), self.metrics, groups))
        found = []
        for (row, other), metric, group in wanted:
            with suppress(Missing):
                found.append(self._compared(measured, row, other, metric, group))
        if not found:
            raise Missing(f"no results yet of the rows of {self.table} that the claim compares")
        ruling = self._judge(measured, corrected(found), len(wanted))
        return replace(ruling, why=self._flatness(measured) + ruling.why) if ruling.verdict == "supported" else ruling

    def _judge(self, measured: Measured, differences: Sequence[Difference], wanted: int) -> Ruling:
        """wanted: the number of differences that the claim names, also those without results."""
        sign = 1 if self.direction == "higher" else -1
        cells = defaultdict(list)
        for difference in differences:
            cells[difference.cell].append(sign * difference.sign)
        claimed, opposite = (sum(signs.count(each) for signs in cells.values()) for each in (1, -1))
        missing = wanted - len(differences)
        counted = f"{claimed} clear as claimed, {opposite} clear in the opposite direction"
        counted += f", {missing} not run" if missing else ""
        supported = not missing and all(sum(each < 1 for each in signs) <= self.allowed for signs in cells.values())
        refuted = any(signs.count(-1) > self.allowed for signs in cells.values())
        refuted |= not (missing or self.allowed) and all(difference.negligible for difference in differences)
        why = f"of {format_count(wanted, 'difference')} {counted}: {listed(differences)}"
        return _decide(measured, self.table, why, supported, refuted)

    def _compared(self, measured: Measured, row: str, other: str, metric: str, datasets: Sequence[str]) -> Difference:
        if self.paired_by == "seed":
            return pooled(measured, self.table, row, other, metric, datasets)
        results = measured.results(self.table)
        wide = results.pivot_table(metric, ["cohort", "fold"], "variant") if metric in results else pd.DataFrame()
        if row not in wide or other not in wide:
            raise Missing(f"no results yet of {row} and {other} in {self.table} ({metric})")
        return _difference(f"{row} − {other}, {metric.removeprefix('test_')}", (wide[row] - wide[other]).dropna())

    def _flatness(self, measured: Measured) -> str:
        """For divergences: that the attention of all rows that should move less is flat, where it is."""
        if not any(map(_is_ratio, self.metrics)) or "effective_share" not in measured.results(self.table):
            return ""
        shares = {row: mean_of(measured, self.table, row, "effective_share") for row, _ in self.all_pairs()}
        if min(shares.values()) < FLAT:
            return ""
        listed = ", ".join(f"{row} {share:.2f}" for row, share in shares.items())
        return f"because attention is flat (effective share {listed}); "


def jsd_unstable(measured: Measured) -> Ruling:
    """Late JSD is at least half of the mean JSD for ABMIL, TransMIL and DSMIL: supported.

    A lower share decides nothing: the learning rate falls to 0, which stops every model.
    """
    shares = {}
    for name in ("abmil", "transmil", "dsmil"):
        late, mean = (mean_of(measured, "dynamics", name, metric) for metric in ("jsd_late", "jsd_mean"))
        shares[name] = late / mean if mean else 0.0
    why = "late over mean JSD between epochs: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    why += "; with cosine decay the learning rate falls to 0, which stops every model"
    return _decide(measured, "dynamics", why, min(shares.values()) >= 0.5, refuted=False)


def instability_hurts(measured: Measured) -> Ruling:
    """Rank correlation of the mean JSD with test F1 is negative (p < 0.05), over the rows of `dynamics`.

    The unit is a row on a cohort, the mean of its seeds: seeds are no replicates of a setting.
    """
    from scipy.stats import spearmanr

    table = measured.results("dynamics")[["cohort", "variant", "jsd_mean", "test_f1"]].dropna()
    means = table.groupby(["cohort", "variant"]).mean()
    if len(means) < 6:
        raise Missing("dynamics: too few rows")
    ranks = means.groupby("cohort").rank()
    rho, p = spearmanr(ranks["jsd_mean"], ranks["test_f1"])
    why = f"rank correlation of JSD between epochs and F1 {rho:+.2f} (p {p:.3f}), {len(means)} settings"
    return _decide(measured, "dynamics", why, p < SIGNIFICANT and rho < 0, p < SIGNIFICANT and rho > 0)


def concentrated(measured: Measured) -> Ruling:
    """ABMIL: effective share below 0.2 supports it, above 0.5 does not."""
    share = mean_of(measured, "histograms", "abmil", "effective_share")
    why = f"effective share of ABMIL {share:.2f}; limits 0.2, 0.5"
    return _decide(measured, "histograms", why, share < 0.2, share > 0.5)


def entmax_slower(measured: Measured) -> Ruling:
    """Entmax by bisection (alpha 1.25) lengthens an epoch by a fifth or more, against NSF and against softmax."""
    rows = {"entmax 1.25": "entmax 1.25", "nsf": "NSF (fused kernels)", "entmax 1": "softmax"}
    seconds = {row: mean_of(measured, "entmax", row, "epoch_seconds") for row in rows}
    slow = seconds["entmax 1.25"]
    why = "seconds per epoch: " + ", ".join(f"{rows[row]} {value:.2f}" for row, value in seconds.items())
    return ruled("run", slow >= 1.2 * max(seconds["nsf"], seconds["entmax 1"]), why, measured.where("entmax"))


def anchor_largest(measured: Measured) -> Ruling:
    """The anchor's gain in F1 is clear, and clearly larger than those of NSF and of drop."""
    steps = {"anchor": ("anchor+drop", "drop"), "NSF": ("anchor+nsf+drop", "anchor+drop")}
    steps["drop"] = ("anchor+nsf+drop", "anchor+nsf")
    gains = {name: _paired(measured, "components", *pair, "test_f1") for name, pair in steps.items()}
    named = {"gain of the anchor": gains["anchor"]}
    named |= {f"gain of the anchor − gain of {name}": gains["anchor"] - gains[name] for name in ("NSF", "drop")}
    differences = corrected([_difference(f"{name}, f1", values.dropna()) for name, values in named.items()])
    signs = [difference.sign for difference in differences]
    return _decide(measured, "components", listed(differences), min(signs) > 0, min(signs) < 0)


def beta_plateau(measured: Measured) -> Ruling:
    """AUC at beta 1 is clearly above that at beta 0, and differs negligibly from that at beta 0.5, 0.75 and 1.5."""
    rows = ("beta 0", "beta 0.5", "beta 0.75", "beta 1.5")
    differences = corrected([pooled(measured, "beta", "beta 1", row, "test_auc") for row in rows])
    without, *plateau = differences
    flat = all(difference.negligible for difference in plateau)
    steep = any(difference.sign and not difference.negligible for difference in plateau)
    why = f"beta 0.5 to 1.5 is {'flat' if flat else 'not shown to be flat'}: {listed(differences)}"
    return _decide(measured, "beta", why, without.sign > 0 and flat, without.sign < 0 or steep)


def small_foci(measured: Measured) -> Ruling:
    """ASMIL finds small foci less often than large ones."""
    results = measured.results("localization")
    row = _row("localization", "asmil")
    small, large = (seed_values(results, row, "camelyon16", f"{size}_foci_found") for size in ("small", "large"))
    difference = (small - large).dropna()
    if difference.empty:
        raise Missing("localization: foci of both sizes were not measured")
    found = _difference("small − large foci found", difference)
    return _decide(measured, "localization", str(found), found.sign < 0, found.sign > 0)


RULES: dict[str, tuple[str, Callable[[Measured], Ruling]]] = {
    "jsd-unstable-baselines": ("dynamics", jsd_unstable),
    "instability-hurts": ("dynamics", instability_hurts),
    "softmax-over-concentrated": ("histograms", concentrated),
    "entmax-slower": ("entmax", entmax_slower),
    "anchor-largest": ("components", anchor_largest),
    "beta-plateau": ("beta", beta_plateau),
    "small-foci-missed": ("localization", small_foci),
}
"""Which table each claim needs, and its rule; the other claims state their comparison in `data/claims.yaml`."""
