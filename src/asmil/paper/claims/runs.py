"""Claims that trainings decide: on synthetic stand-ins, from the results of `asmil paper`.

A difference is pooled over data sets: averaged for every seed, then a 95 % interval by Student's t over seeds. *Clear*
means that the interval excludes 0. Unless a rule says otherwise, a claim is supported if every difference that it
names is clear in the claimed direction, not supported if any is clear in the other direction or all are negligible
(their intervals lie within 0.01 of 0), and undecided otherwise. Claims that need no other rule are
data: a `Comparison` or a `Lead` in `data/claims.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from asmil.paper.claims.measured import Measured
from asmil.paper.claims.ruling import Ruling, Verdict, ruled
from asmil.paper.comparing import NEGLIGIBLE, seed_values, t_interval
from asmil.paper.recipes import RECIPES, RecipeRow
from asmil.reporting import Interval
from asmil.settings.config import Settings

FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Difference:
    """A pooled difference of two rows in a metric, as text."""

    name: str
    mean: float
    interval: Interval
    seeds: int

    @property
    def sign(self) -> int:
        """1 or -1 where it is clear, else 0."""
        if self.seeds < FEWEST_SEEDS or not self.interval.excludes_zero:
            return 0
        return 1 if self.interval.low > 0 else -1

    @property
    def negligible(self) -> bool:
        """Whether its interval lies within the negligible range."""
        return (
            self.seeds >= FEWEST_SEEDS
            and self.interval.is_defined
            and max(abs(self.interval.low), abs(self.interval.high)) <= NEGLIGIBLE
        )

    def __str__(self) -> str:
        return f"{self.name} {_short(self.mean)} [{_short(self.interval.low)}, {_short(self.interval.high)}]"


class Missing(Exception):
    """Results of trainings that a rule needs are missing."""


def _short(value: float) -> str:
    return f"{value:+.1e}" if value and abs(value) < 0.001 else f"{value:+.3f}"


def _row(table: str, name: str) -> RecipeRow:
    return next(row for row in RECIPES[table].rows if row.name == name)


def pooled(
    measured: Measured, table: str, row: str, other: str, metric: str, datasets: Sequence[str] = ()
) -> Difference:
    """Row minus other, the mean over data sets for every seed that all of them have."""
    results = measured.results(table)
    differences = []
    for dataset in datasets or RECIPES[table].datasets:
        mine, theirs = (seed_values(results, _row(table, name), dataset, metric) for name in (row, other))
        difference = (mine - theirs).dropna()
        if len(difference):
            differences.append(difference)
    if not differences:
        raise Missing(f"no results yet of {row} and {other} in {table} ({metric})")
    where = f" on {datasets[0]}" if len(datasets) == 1 else ""
    name = f"{row} − {other}{where}, {metric.removeprefix('test_')}"
    return _mean_difference(name, pd.concat(differences, axis=1).dropna().mean(axis=1))


def _mean_difference(name: str, differences: pd.Series[float]) -> Difference:
    interval, _ = t_interval(differences.to_list())
    return Difference(name, float(differences.mean()), interval, len(differences))


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
    verdict: Verdict = "supported" if supported else "not supported" if refuted else "undecided"
    return Ruling(verdict, "run", why, measured.where(table))


def judge(
    measured: Measured, table: str, differences: Sequence[Difference], wanted: int = 1, small_counts: bool = False
) -> Ruling:
    """Whether the differences have the claimed sign. small_counts: a small difference is not negligible."""
    claimed, opposite = (sum(each.sign == sign for each in differences) for sign in (wanted, -wanted))
    if len(differences) == 1:
        clear = "clear, as claimed" if claimed else "clear, in the opposite direction" if opposite else "not clear"
    else:
        count = len(differences)
        clear = f"of {count} differences {claimed} clear as claimed, {opposite} clear in the opposite direction"
    refuted = opposite > 0 or (not small_counts and all(each.negligible for each in differences))
    why = f"{clear}: {'; '.join(map(str, differences))}"
    return _decide(measured, table, why, claimed == len(differences), refuted)


class Comparison(Settings):
    """Rows of a table, each compared with another row; all differences must be clear in the claimed direction.

    fewest_pairs: pairs without results are left out, as long as so many are left; None: every pair is needed
    small_counts: the metrics have small values, so that a small difference is not negligible
    """

    table: str
    pairs: list[tuple[str, str]]
    metrics: tuple[str, ...] = ("test_f1", "test_auc")
    direction: Literal["higher", "lower"] = "higher"
    fewest_pairs: int | None = None
    small_counts: bool = False

    def decide(self, measured: Measured) -> Ruling:
        differences, left = [], 0
        for pair in self.pairs:
            try:
                differences += [pooled(measured, self.table, *pair, metric) for metric in self.metrics]
                left += 1
            except Missing:
                if self.fewest_pairs is None:
                    raise
        if left < (self.fewest_pairs or 0):
            raise Missing(f"{self.table}: results of fewer than {self.fewest_pairs} pairs of rows")
        return judge(measured, self.table, differences, 1 if self.direction == "higher" else -1, self.small_counts)


class Lead(Settings):
    """A row of ASMIL against the other methods on the same features: the three closest must be clearly below it.

    datasets: none: all of the table; fewest: of other methods with results
    """

    table: str
    row: str
    metric: str = "test_auc"
    datasets: tuple[str, ...] = ()
    fewest: int = 4

    def others(self, measured: Measured) -> list[Difference]:
        """The other methods minus the row of ASMIL, as far as both were measured."""
        backbone = _row(self.table, self.row).backbone
        differences = []
        for row in RECIPES[self.table].rows:
            if row.backbone == backbone and row.method != "asmil":
                with suppress(Missing):
                    differences.append(pooled(measured, self.table, row.name, self.row, self.metric, self.datasets))
        if len(differences) < self.fewest:
            raise Missing(f"{self.table}: fewer than {self.fewest} other methods")
        return differences

    def decide(self, measured: Measured) -> Ruling:
        return _judge_closest(measured, self.table, self.others(measured))


def _judge_closest(measured: Measured, table: str, others: Iterable[Difference]) -> Ruling:
    """Whether the three others that come closest are clearly below."""
    return judge(measured, table, sorted(others, key=lambda difference: -difference.mean)[:3], -1)


def jsd_unstable(measured: Measured) -> Ruling:
    """Late JSD is at least half of the mean JSD for ABMIL, TransMIL and DSMIL: supported; below a tenth: not."""
    shares = {}
    for name in ("abmil", "transmil", "dsmil"):
        late, mean = (mean_of(measured, "dynamics", name, metric) for metric in ("jsd_late", "jsd_mean"))
        shares[name] = late / mean if mean else 0.0
    why = "late over mean JSD between epochs: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return _decide(measured, "dynamics", why, min(shares.values()) >= 0.5, max(shares.values()) < 0.1)


def instability_hurts(measured: Measured) -> Ruling:
    """Rank correlation of late JSD with test F1 within cohorts is negative (p < 0.05), over trainings of `dynamics`."""
    from scipy.stats import spearmanr

    table = measured.results("dynamics")[["cohort", "jsd_late", "test_f1"]].dropna()
    if len(table) < 20:
        raise Missing("dynamics: too few trainings")
    ranks = table.groupby("cohort").rank()
    rho, p = spearmanr(ranks["jsd_late"], ranks["test_f1"])
    why = f"rank correlation of late JSD and F1 {rho:+.2f} (p {p:.3f}), {len(table)} trainings"
    return _decide(measured, "dynamics", why, p < 0.05 and rho < 0, p < 0.05)


def feature_matching(measured: Measured) -> Ruling:
    """Matching bag features does not lower late JSD, while the anchor does."""
    features = pooled(measured, "dynamics", "abmil+features", "abmil", "jsd_late")
    anchor = pooled(measured, "dynamics", "abmil+anchor+nsf", "abmil", "jsd_late")
    lowers = features.sign < 0
    return _decide(measured, "dynamics", f"{features}; {anchor}", not lowers and anchor.sign < 0, lowers)


def concentrated(measured: Measured) -> Ruling:
    """ABMIL: effective share below 0.2 supports it, above 0.5 does not."""
    table = "histograms" if measured.has("histograms") else "dynamics"
    share = mean_of(measured, table, "abmil", "effective_share")
    return _decide(measured, table, f"effective share of ABMIL {share:.2f}; limits 0.2, 0.5", share < 0.2, share > 0.5)


def entmax_slower(measured: Measured) -> Ruling:
    """Entmax by bisection (alpha 1.25) lengthens an epoch by a fifth or more."""
    slow, fast = (mean_of(measured, "entmax", row, "epoch_seconds") for row in ("entmax 1.25", "nsf"))
    why = f"with entmax 1.25 an epoch is {slow / fast:.1f} times as long as with NSF"
    with suppress(Missing):
        # NSF has fused kernels on a GPU; entmax 1.5 is solved by sorting and trained in the same way as the slow one
        sorting = mean_of(measured, "entmax", "entmax 1.5", "epoch_seconds")
        why += f", and {slow / sorting:.1f} times as long as with entmax 1.5"
    return ruled("run", slow >= 1.2 * fast, why, measured.where("entmax"))


def drop_inverted_u(measured: Measured) -> Ruling:
    """The best drop rate by AUC is 0.5 for 4, 8 and 16 tokens; at the ends for two of the three: not supported."""
    best = {}
    for tokens in (4, 8, 16):
        rows = [row.name for row in RECIPES["drop-rate"].rows if row.name.startswith(f"{tokens} tokens")]
        means = {}
        for row in rows:
            try:
                means[float(row.split("drop ")[1])] = mean_of(measured, "drop-rate", row, "test_auc")
            except Missing:
                continue
        if len(means) >= 4:
            best[tokens] = max(means, key=lambda drop: means[drop])
    if not best:
        raise Missing("drop-rate: too few drop rates")
    why = "best drop rate: " + ", ".join(f"{tokens} tokens {drop:g}" for tokens, drop in best.items())
    in_the_middle = len(best) == 3 and all(drop == 0.5 for drop in best.values())
    at_ends = sum(drop in (0.0, 0.1, 0.9) for drop in best.values())
    return _decide(measured, "drop-rate", why, in_the_middle, at_ends >= 2)


def anchor_largest(measured: Measured) -> Ruling:
    """The anchor's gain in F1 is clear and larger than those of NSF and drop; no clear gain: not supported."""
    anchor = pooled(measured, "components", "anchor+drop", "drop", "test_f1")
    nsf = pooled(measured, "components", "anchor+nsf+drop", "anchor+drop", "test_f1")
    drop = pooled(measured, "components", "anchor+nsf+drop", "anchor+nsf", "test_f1")
    largest = anchor.sign > 0 and anchor.mean > max(nsf.mean, drop.mean)
    no_gain = anchor.sign <= 0 and anchor.seeds >= FEWEST_SEEDS
    return _decide(measured, "components", f"{anchor}; {nsf}; {drop}", largest, no_gain)


def anchor_significant(measured: Measured) -> Ruling:
    """F1 and AUC rise with the anchor on each of the three data sets, each p < 0.05."""
    differences = [
        pooled(measured, "significance", "with anchor", "without anchor", metric, [dataset])
        for dataset in RECIPES["significance"].datasets
        for metric in ("test_f1", "test_auc")
    ]
    enough = min(difference.seeds for difference in differences) >= 5
    rises = enough and all(difference.sign > 0 for difference in differences)
    return _decide(measured, "significance", "; ".join(map(str, differences)), rises, enough)


def beta_plateau(measured: Measured) -> Ruling:
    """Means of AUC for beta 0.5 to 1.5 lie within a seed sd of each other, and beta 0 is clearly lower than 1."""
    flat = ("beta 0.5", "beta 0.75", "beta 1", "beta 1.5")
    means = [mean_of(measured, "beta", row, "test_auc") for row in flat]
    results = measured.results("beta")
    spreads = [seed_values(results, _row("beta", "beta 1"), d, "test_auc").std() for d in RECIPES["beta"].datasets]
    spread = float(np.nanmean(spreads))
    lower = pooled(measured, "beta", "beta 1", "beta 0", "test_auc")
    span = max(means) - min(means)
    why = f"AUC varies by {span:.3f} for beta 0.5 to 1.5, by {spread:.3f} (sd) between seeds; {lower}"
    return _decide(measured, "beta", why, span <= spread and lower.sign > 0, lower.sign < 0 or span > 2 * spread)


def competitive_resnet(measured: Measured) -> Ruling:
    """On stand-ins for ResNet features: at most one method clearly above ASMIL in mean AUC."""
    others = Lead(table="subtyping", row="asmil (resnet18_imagenet)").others(measured)
    above = [str(difference) for difference in others if difference.sign > 0]
    why = "; ".join(above) or f"none of {len(others)} clearly above"
    return ruled("run", len(above) <= 1, why, measured.where("subtyping"))


def no_missed(measured: Measured) -> Ruling:
    """Share of tumor slides without a missed region, against the three methods that come closest."""
    table = "no-missed" if measured.has("no-missed") else "localization"
    return Lead(table=table, row="asmil", metric="no_missed", fewest=3).decide(measured)


def small_foci(measured: Measured) -> Ruling:
    """ASMIL finds small foci less often than large ones."""
    results = measured.results("localization")
    row = _row("localization", "asmil")
    small, large = (seed_values(results, row, "camelyon16", f"{size}_foci_found") for size in ("small", "large"))
    difference = (small - large).dropna()
    if difference.empty:
        raise Missing("localization: foci of both sizes were not measured")
    return judge(measured, "localization", [_mean_difference("small − large foci found", difference)], -1)


def survival_best(measured: Measured) -> Ruling:
    """Mean C-index over the cohorts, against the three methods that come closest; paired by cohort and fold."""
    results = measured.results("survival")
    if "test_c_index" not in results:
        raise Missing("survival: no C-index")
    wide = results.pivot_table("test_c_index", ["cohort", "fold"], "variant")
    if "asmil" not in wide or wide.shape[1] < 4:
        raise Missing("survival: fewer than three other methods")
    others = wide.columns.drop("asmil")
    differences = [
        _mean_difference(f"{name} − asmil, C-index", (wide[name] - wide["asmil"]).dropna()) for name in others
    ]
    return _judge_closest(measured, "survival", differences)


RULES: dict[str, tuple[str, Callable[[Measured], Ruling]]] = {
    "jsd-unstable-baselines": ("dynamics", jsd_unstable),
    "instability-hurts": ("dynamics", instability_hurts),
    "feature-matching-not-enough": ("dynamics", feature_matching),
    "softmax-over-concentrated": ("dynamics", concentrated),
    "entmax-slower": ("entmax", entmax_slower),
    "drop-inverted-u": ("drop-rate", drop_inverted_u),
    "competitive-resnet": ("subtyping", competitive_resnet),
    "anchor-largest": ("components", anchor_largest),
    "anchor-significant": ("significance", anchor_significant),
    "beta-plateau": ("beta", beta_plateau),
    "no-missed-rate": ("localization", no_missed),
    "small-foci-missed": ("localization", small_foci),
    "survival-best": ("survival", survival_best),
}
"""Which table each claim needs, and its rule; the other claims state their comparison in `data/claims.yaml`."""
