"""Claims that trainings decide: on synthetic stand-ins, from the results of `asmil paper`.

A difference is pooled over data sets: averaged for every seed, then a 95 % interval by Student's t over seeds. *Clear*
means that the interval excludes 0. Unless a rule says otherwise, a claim is supported if every difference that it
names is clear in the claimed direction, not supported if any is clear in the other direction or all are negligible
(their intervals lie within 0.01 of 0), and undecided otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd

from asmil.paper.claims.measured import Measured
from asmil.paper.claims.ruling import Ruling, Verdict, ruled
from asmil.paper.comparing import NEGLIGIBLE, seed_values, t_interval
from asmil.paper.recipes import RECIPES, RecipeRow
from asmil.reporting import Interval

Rule = Callable[[Measured], Ruling]
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
    """The trainings that a rule needs are missing."""


def _short(value: float) -> str:
    return f"{value:+.1e}" if value and abs(value) < 0.001 else f"{value:+.3f}"


def _row(table: str, name: str) -> RecipeRow:
    return next(row for row in RECIPES[table].rows if row.name == name)


def pooled(
    measured: Measured, table: str, row: str, other: str, metric: str, datasets: Sequence[str] = ()
) -> Difference:
    """Row minus other, the mean over data sets for every seed that all of them have."""
    results = measured.results(table)
    found = []
    for dataset in datasets or RECIPES[table].datasets:
        mine, theirs = (seed_values(results, _row(table, name), dataset, metric) for name in (row, other))
        difference = (mine - theirs).dropna()
        if len(difference):
            found.append(difference)
    if not found:
        raise Missing(f"no results yet of {row} and {other} in {table} ({metric})")
    by_seed = pd.concat(found, axis=1).dropna().mean(axis=1)
    interval, _ = t_interval(by_seed.to_list())
    where = f" on {datasets[0]}" if len(datasets) == 1 else ""
    name = f"{row} − {other}{where}, {metric.removeprefix('test_')}"
    return Difference(name, float(by_seed.mean()), interval, len(by_seed))


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


def _judge(
    measured: Measured, table: str, found: Sequence[Difference], wanted: int = 1, small_counts: bool = False
) -> Ruling:
    """small_counts: for measures whose small numbers are not negligible"""
    supported = all(one.sign == wanted for one in found)
    refuted = any(one.sign == -wanted for one in found)
    refuted |= not small_counts and all(one.negligible for one in found)
    return _decide(measured, table, f"{_counted(found, wanted)}: {'; '.join(map(str, found))}", supported, refuted)


def _counted(found: Sequence[Difference], wanted: int) -> str:
    """How many differences are clear, in words."""
    claimed, opposite = (sum(one.sign == sign for one in found) for sign in (wanted, -wanted))
    if len(found) == 1:
        return "clear, as claimed" if claimed else "clear, in the opposite direction" if opposite else "not clear"
    return f"of {len(found)} differences {claimed} clear as claimed, {opposite} clear in the opposite direction"


def _both(measured: Measured, table: str, row: str, other: str) -> list[Difference]:
    return [pooled(measured, table, row, other, metric) for metric in ("test_f1", "test_auc")]


def jsd_unstable(measured: Measured) -> Ruling:
    """Late JSD is at least half of the mean JSD for ABMIL, TransMIL and DSMIL: supported; below a tenth: not."""
    shares = {}
    for name in ("abmil", "transmil", "dsmil"):
        late, mean = (mean_of(measured, "dynamics", name, metric) for metric in ("jsd_late", "jsd_mean"))
        shares[name] = late / mean if mean else 0.0
    why = "late over mean JSD between epochs: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return _decide(measured, "dynamics", why, min(shares.values()) >= 0.5, max(shares.values()) < 0.1)


def jsd_anchor_lower(measured: Measured) -> Ruling:
    """Late JSD falls with anchor and NSF for ABMIL, TransMIL and DSMIL."""
    methods = ("abmil", "transmil", "dsmil")
    found = [pooled(measured, "dynamics", f"{m}+anchor+nsf", m, "jsd_late") for m in methods]
    return _judge(measured, "dynamics", found, -1, small_counts=True)


def jsd_asmil_transmil(measured: Measured) -> Ruling:
    """ASMIL's JSD relative to what its attention says, and its cross-entropy, lie below TransMIL's."""
    found = [pooled(measured, "dynamics", "asmil+anchor+nsf", "transmil", m) for m in ("jsd_relative", "ce_end")]
    return _judge(measured, "dynamics", found, -1, small_counts=True)


def instability_hurts(measured: Measured) -> Ruling:
    """Rank correlation of late JSD with test F1 within cohorts is negative (p < 0.05), over trainings of `dynamics`."""
    from scipy.stats import spearmanr

    table = measured.results("dynamics")[["cohort", "jsd_late", "test_f1"]].dropna()
    if len(table) < 20:
        raise Missing("dynamics: too few trainings")
    ranks = table.groupby("cohort").rank()
    found = spearmanr(ranks["jsd_late"], ranks["test_f1"])
    why = f"rank correlation of late JSD and F1 {found.statistic:+.2f} (p {found.pvalue:.3f}), {len(table)} trainings"
    clear = found.pvalue < 0.05
    return _decide(measured, "dynamics", why, clear and found.statistic < 0, clear)


def feature_matching(measured: Measured) -> Ruling:
    """Matching bag features does not lower late JSD, while the anchor does."""
    features = pooled(measured, "dynamics", "abmil+features", "abmil", "jsd_late")
    anchor = pooled(measured, "dynamics", "abmil+anchor+nsf", "abmil", "jsd_late")
    lowers = features.sign < 0
    return _decide(measured, "dynamics", f"{features}; {anchor}", not lowers and anchor.sign < 0, lowers)


def scalar_terms(measured: Measured) -> Ruling:
    """At what the attention says (relative JSD), the anchor moves less than the entropy term."""
    found = pooled(measured, "dynamics", "abmil+anchor+nsf", "abmil+entropy", "jsd_relative")
    return _judge(measured, "dynamics", [found], -1, small_counts=True)


def clusters(measured: Measured) -> Ruling:
    """Silhouettes of validation slides rise with the anchor, in the middle and at the end, for ASMIL and TransMIL."""
    found = [
        pooled(measured, "tsne", f"{method}+anchor+nsf", method, f"silhouette_val_{when}")
        for method in ("asmil", "transmil")
        for when in ("middle", "last")
    ]
    return _judge(measured, "tsne", found)


def concentrated(measured: Measured) -> Ruling:
    """ABMIL: effective share below 0.2 supports it, above 0.5 does not."""
    table = "histograms" if measured.has("histograms") else "dynamics"
    share = mean_of(measured, table, "abmil", "effective_share")
    return _decide(measured, table, f"effective share of ABMIL {share:.2f}; limits 0.2, 0.5", share < 0.2, share > 0.5)


def beats_temperature(measured: Measured) -> Ruling:
    """F1 and AUC of softmax anchors at T = 2, 4, 8 lie below those of NSF."""
    rows = ("softmax T=2", "softmax T=4", "softmax T=8")
    return _judge(measured, "temperature", [d for row in rows for d in _both(measured, "temperature", row, "nsf")], -1)


def beats_entmax(measured: Measured) -> Ruling:
    """F1 and AUC of entmax anchors lie below those of NSF."""
    rows = [row.name for row in RECIPES["entmax"].rows if row.name != "nsf"]
    return _judge(measured, "entmax", [d for row in rows for d in _both(measured, "entmax", row, "nsf")], -1)


def entmax_slower(measured: Measured) -> Ruling:
    """Entmax by bisection (alpha 1.25) lengthens an epoch by a fifth or more."""
    slow, fast = (mean_of(measured, "entmax", row, "epoch_seconds") for row in ("entmax 1.25", "nsf"))
    why = f"with entmax 1.25 an epoch is {slow / fast:.1f} times as long as with NSF"
    with suppress(Missing):
        # NSF has fused kernels on a GPU; entmax 1.5 is solved by sorting and trained in the same way as the slow one
        sorting = mean_of(measured, "entmax", "entmax 1.5", "epoch_seconds")
        why += f", and {slow / sorting:.1f} times as long as with entmax 1.5"
    return ruled(slow >= 1.2 * fast, "run", why, measured.where("entmax"))


def online_nsf(measured: Measured) -> Ruling:
    """NSF in the online branch lowers F1 and AUC."""
    return _judge(measured, "online-nsf", _both(measured, "online-nsf", "online nsf", "online softmax"), -1)


def drop_decline(measured: Measured) -> Ruling:
    """Without drop, and for ABMIL, validation AUC falls more from its best epoch to the last than with drop."""
    rows = ("asmil, drop 0", "abmil")
    found = [pooled(measured, "overfitting", row, "asmil, drop 0.5", "val_auc_fall") for row in rows]
    return _judge(measured, "overfitting", found)


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


def drop_gain(measured: Measured) -> Ruling:
    """Drop adds F1 and AUC in each setting."""
    pairs = (("anchor+nsf+drop", "anchor+nsf"), ("anchor+drop", "anchor"), ("drop", "none"))
    return _judge(measured, "components", [d for pair in pairs for d in _both(measured, "components", *pair)])


def components(measured: Measured) -> Ruling:
    """Anchor, NSF and drop each add F1 and AUC."""
    pairs = (("anchor+drop", "drop"), ("anchor+nsf+drop", "anchor+drop"), ("anchor+nsf+drop", "anchor+nsf"))
    return _judge(measured, "components", [d for pair in pairs for d in _both(measured, "components", *pair)])


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
    found = [
        pooled(measured, "significance", "with anchor", "without anchor", metric, [dataset])
        for dataset in RECIPES["significance"].datasets
        for metric in ("test_f1", "test_auc")
    ]
    enough = min(one.seeds for one in found) >= 5
    rises = enough and all(one.sign > 0 for one in found)
    return _decide(measured, "significance", "; ".join(map(str, found)), rises, enough)


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


def token_count(measured: Measured) -> Ruling:
    """Eight tokens beat two in F1 and AUC."""
    return _judge(measured, "tokens", _both(measured, "tokens", "2 tokens", "8 tokens"), -1)


def batch_update(measured: Measured) -> Ruling:
    """Moving the anchor every step beats every epoch in F1 and AUC."""
    return _judge(measured, "update", _both(measured, "update", "every batch", "every epoch"))


def _best_of(measured: Measured, table: str, backbone: str, datasets: Sequence[str] = ()) -> Ruling:
    """ASMIL clearly above every other method in mean AUC: supported; clearly below any: not; else undecided."""
    return _judge_closest(measured, table, _of_backbone(measured, table, backbone, datasets))


def _of_backbone(measured: Measured, table: str, backbone: str, datasets: Sequence[str] = ()) -> list[Difference]:
    """Mean AUC of the other methods minus that of ASMIL, all on features of one backbone."""
    mine = f"asmil ({backbone})"
    names = [row.name for row in RECIPES[table].rows if row.backbone == backbone and row.name != mine]
    return _others(measured, table, names, mine, "test_auc", 4, datasets)


def _others(
    measured: Measured,
    table: str,
    names: Iterable[str],
    mine: str,
    metric: str,
    fewest: int,
    datasets: Sequence[str] = (),
) -> list[Difference]:
    """The named rows minus `mine`, as far as both were measured; at least `fewest`."""
    found = []
    for name in names:
        try:
            found.append(pooled(measured, table, name, mine, metric, datasets))
        except Missing:
            continue
    if len(found) < fewest:
        raise Missing(f"{table}: fewer than {fewest} other methods")
    return found


def _judge_closest(measured: Measured, table: str, others: Iterable[Difference]) -> Ruling:
    """Whether the three others that come closest are clearly below."""
    return _judge(measured, table, sorted(others, key=lambda one: -one.mean)[:3], -1)


def sota_vit(measured: Measured) -> Ruling:
    """On stand-ins for ViT features, against the three methods that come closest."""
    return _best_of(measured, "subtyping", "vit_s_ssl")


def competitive_resnet(measured: Measured) -> Ruling:
    """On stand-ins for ResNet features: at most one method clearly above ASMIL in mean AUC."""
    others = _of_backbone(measured, "subtyping", "resnet18_imagenet")
    above = [str(one) for one in others if one.sign > 0]
    why = "; ".join(above) or f"none of {len(others)} clearly above"
    return ruled(len(above) <= 1, "run", why, measured.where("subtyping"))


def other_hospitals(measured: Measured) -> Ruling:
    """The lead on the stand-in of CAMELYON-17, tested on sites that were not trained on."""
    return _best_of(measured, "subtyping", "vit_s_ssl", ["camelyon17"])


def _localized(measured: Measured, metric: str, table: str = "localization") -> Ruling:
    names = [row.name for row in RECIPES[table].rows if row.name not in ("asmil", "asmil without nsf")]
    return _judge_closest(measured, table, _others(measured, table, names, "asmil", metric, 3))


def localization_best(measured: Measured) -> Ruling:
    """Dice of ASMIL against the three methods that come closest."""
    return _localized(measured, "tile_dice")


def no_missed(measured: Measured) -> Ruling:
    """Share of tumor slides without a missed region."""
    table = "no-missed" if measured.has("no-missed") else "localization"
    return _localized(measured, "no_missed", table)


def small_foci(measured: Measured) -> Ruling:
    """ASMIL finds small foci less often than large ones."""
    results = measured.results("localization")
    row = _row("localization", "asmil")
    small, large = (seed_values(results, row, "camelyon16", f"{size}_foci_found") for size in ("small", "large"))
    difference = (small - large).dropna()
    if difference.empty:
        raise Missing("localization: foci of both sizes were not measured")
    interval, _ = t_interval(difference.to_list())
    found = Difference("small − large foci found", float(difference.mean()), interval, len(difference))
    return _judge(measured, "localization", [found], -1)


def nsf_localizes(measured: Measured) -> Ruling:
    """Dice is lower without NSF."""
    difference = pooled(measured, "localization", "asmil without nsf", "asmil", "tile_dice")
    return _judge(measured, "localization", [difference], -1)


def plug_in(measured: Measured) -> Ruling:
    """The anchor alone adds F1 and AUC to ABMIL, CLAM-SB, TransMIL and DSMIL."""
    return _plugged(measured, "+anchor", "")


def plug_in_nsf(measured: Measured) -> Ruling:
    """Anchor and NSF add F1 and AUC over the anchor alone."""
    return _plugged(measured, "+anchor+nsf", "+anchor")


def _plugged(measured: Measured, added: str, before: str) -> Ruling:
    found = []
    for method in ("abmil", "clam_sb", "transmil", "dsmil"):
        try:
            found += _both(measured, "plug-in", f"{method}{added}", f"{method}{before}")
        except Missing:
            continue
    if len(found) < 4:
        raise Missing("plug-in: fewer than two methods")
    return _judge(measured, "plug-in", found)


def survival_best(measured: Measured) -> Ruling:
    """Mean C-index over the cohorts, against the three methods that come closest; paired by cohort and fold."""
    results = measured.results("survival")
    if "test_c_index" not in results:
        raise Missing("survival: no C-index")
    wide = results.pivot_table("test_c_index", ["cohort", "fold"], "variant")
    if "asmil" not in wide or wide.shape[1] < 4:
        raise Missing("survival: fewer than three other methods")
    found = []
    for name in wide.columns.drop("asmil"):
        difference = (wide[name] - wide["asmil"]).dropna()
        interval, _ = t_interval(difference.to_list())
        found.append(Difference(f"{name} − asmil, C-index", float(difference.mean()), interval, len(difference)))
    return _judge_closest(measured, "survival", found)


RULES: dict[str, tuple[str, Rule]] = {
    "jsd-unstable-baselines": ("dynamics", jsd_unstable),
    "jsd-anchor-lower": ("dynamics", jsd_anchor_lower),
    "jsd-asmil-vs-transmil": ("dynamics", jsd_asmil_transmil),
    "instability-hurts": ("dynamics", instability_hurts),
    "feature-matching-not-enough": ("dynamics", feature_matching),
    "scalar-regulariser-not-enough": ("dynamics", scalar_terms),
    "tsne-clusters": ("tsne", clusters),
    "softmax-over-concentrated": ("dynamics", concentrated),
    "nsf-beats-temperature": ("temperature", beats_temperature),
    "nsf-beats-entmax": ("entmax", beats_entmax),
    "entmax-slower": ("entmax", entmax_slower),
    "online-nsf-hurts": ("online-nsf", online_nsf),
    "drop-prevents-decline": ("overfitting", drop_decline),
    "drop-inverted-u": ("drop-rate", drop_inverted_u),
    "drop-gain": ("components", drop_gain),
    "sota-vit": ("subtyping", sota_vit),
    "competitive-resnet": ("subtyping", competitive_resnet),
    "plug-in-anchor": ("plug-in", plug_in),
    "plug-in-nsf": ("plug-in", plug_in_nsf),
    "components-all-help": ("components", components),
    "anchor-largest": ("components", anchor_largest),
    "anchor-significant": ("significance", anchor_significant),
    "beta-plateau": ("beta", beta_plateau),
    "token-count": ("tokens", token_count),
    "batch-update-better": ("update", batch_update),
    "ood-hospitals": ("subtyping", other_hospitals),
    "loc-best": ("localization", localization_best),
    "no-missed-rate": ("localization", no_missed),
    "small-foci-missed": ("localization", small_foci),
    "nsf-cause-of-loc": ("localization", nsf_localizes),
    "survival-best": ("survival", survival_best),
}
"""Which table each claim needs, and its rule."""
