"""Claims about printed numbers, decided by arithmetic on the paper's own tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from asmil.paper.claims.ruling import Ruling, ruled
from asmil.paper.printed import printed_table

_ruled = partial(ruled, "print")


def _vit(key: str) -> tuple[float, float, str]:
    return printed_table("subtyping").best_other(key, backbone="vit_s_ssl")


def gain_bracs() -> Ruling:
    """BRACS leads of 3.9 F1 and 0.9 AUC points."""
    f1, auc = (round(100 * (mine - best), 1) for mine, best, _ in (_vit("bracs_f1"), _vit("bracs_auc")))
    return _ruled((f1, auc) == (3.9, 0.9), f"the table gives {f1} and {auc} points over the best other method")


def gain_camelyon17() -> Ruling:
    """CAMELYON-17 F1 lead of 6.49 percent."""
    mine, best, name = _vit("camelyon17_f1")
    relative = 100 * (mine - best) / best
    return _ruled(round(relative, 2) == 6.49, f"{relative:.2f} % ({100 * (mine - best):.1f} points) over {name}")


def gain_camelyon16() -> Ruling:
    """CAMELYON-16 leads of 3.3 percent F1 and 1.6 percent AUC over the strongest baseline."""
    details = []
    fits = True
    for key, quoted in (("camelyon16_f1", 3.3), ("camelyon16_auc", 1.6)):
        mine, best, name = _vit(key)
        points, relative = 100 * (mine - best), 100 * (mine - best) / best
        fits &= quoted in (round(points, 1), round(relative, 1))
        details.append(f"{key.split('_')[1]} {relative:.2f} % ({points:.1f} points) over {name}")
    return _ruled(fits, "the table gives " + ", ".join(details))


def more_gain_where_sparse() -> Ruling:
    """The gain is larger where tumor is sparse."""
    sparse, dense = (mine - best for mine, best, _ in (_vit("camelyon16_f1"), _vit("bracs_f1")))
    return _ruled(sparse > dense, f"lead in F1: CAMELYON-16 (sparse) {sparse:+.3f}, BRACS {dense:+.3f}")


def largest_plug_in_gain() -> Ruling:
    """The largest F1 gain of the plug-in is ABMIL on BRACS, 10.73 percent."""
    table = printed_table("plug-in")
    gains = {}
    for row in table.rows:
        base = table.row(method=row.about["method"], anchor=False)
        for column in table.columns:
            if column.metric == "f1" and row.about["anchor"]:
                before = base.values[column.key][0]
                gain = 100 * (row.values[column.key][0] - before) / before
                gains[row.about["method"], column.dataset, bool(row.about["nsf"])] = gain
    best = max(gains, key=lambda key: gains[key])
    fits = best[:2] == ("abmil", "bracs") and math.floor(100 * gains[best]) / 100 == 10.73
    return _ruled(fits, f"the largest relative gain is {best[0]} on {best[1]}, {gains[best]:.3f} %")


def drop_less_spread() -> Ruling:
    """Drop reduces the spread between runs."""
    table = printed_table("components")
    pairs = [
        [table.row(anchor=anchor, nsf=nsf, drop=drop).values[key][1] for drop in (True, False)]
        for anchor, nsf in ((True, True), (True, False), (False, False))
        for key in ("bracs_f1", "bracs_auc")
    ]
    lower = sum(with_drop < without for with_drop, without in pairs)
    f1_with, f1_without = pairs[0]
    counted = f"printed sd is lower with drop in {lower} of {len(pairs)} cells"
    why = f"{counted}; full model F1 {f1_with} with, {f1_without} without"
    return _ruled(lower > len(pairs) / 2 and f1_with < f1_without, why)


def foundation_features() -> Ruling:
    """ASMIL is best with PathGen-CLIP and UNI features."""
    table = printed_table("foundation")
    lost = []
    for backbone in ("pathgen_clip_vit_l", "uni_vit_l"):
        for column in table.columns:
            mine, best, name = table.best_other(column.key, backbone=backbone)
            if mine <= best:
                lost.append(f"{column.key} with {backbone}: {name} {best}, asmil {mine}")
    return _ruled(not lost, "; ".join(lost) or "best in every cell")


def specificity() -> Ruling:
    """ASMIL has the higher specificity on normal slides."""
    table = printed_table("localization")
    others = {row.about["method"]: row.values["specificity"][0] for row in table.rows}
    mine = others.pop("asmil")
    ties = [method for method, value in others.items() if value >= mine]
    return _ruled(not ties, f"printed {mine}, the same as {', '.join(ties)}" if ties else "the highest in print")


def all_regions() -> Ruling:
    """ASMIL highlights every tumor region."""
    rate = printed_table("no-missed").value("rate", method="asmil")
    return _ruled(rate == 100, f"the paper's own rate of slides without a missed region is {rate} %")


def classic_wins() -> Ruling:
    """ASMIL is above all baselines on 4 of 5 classic sets."""
    table = printed_table("classic")
    wins = sum(mine > best for mine, best, _ in (table.best_other(column.key) for column in table.columns))
    return _ruled(wins >= 4, f"above all others on {wins} sets in print; near 0.95 on FOX needs the label as input")


def flops_against_mhim() -> Ruling:
    """ASMIL's operations are lower than or like MHIM's."""
    table = printed_table("cost")
    mine, theirs = (table.value("infer_flops", method=method) for method in ("asmil", "mhim"))
    return _ruled(mine <= 1.05 * theirs, f"asmil {mine:g} M, mhim {theirs:g} M: {100 * (mine / theirs - 1):.0f} % more")


def training_overhead() -> Ruling:
    """The anchor adds little training cost (a quarter or less, in time and memory)."""
    table = printed_table("cost-anchor")
    details, fits = [], True
    for method in ("clam_sb", "transmil", "dsmil", "abmil"):
        rises = []
        for key in ("train_time", "train_memory"):
            with_anchor, without = (table.value(key, method=method, anchor=anchor) for anchor in (True, False))
            rises.append(100 * (with_anchor / without - 1))
        fits &= max(rises) <= 25
        details.append(f"{method} time {rises[0]:+.0f} %, memory {rises[1]:+.0f} %")
    return _ruled(fits, "; ".join(details))


def competitive_resnet() -> Ruling:
    """ASMIL is best or second with ResNet-18 features."""
    table = printed_table("subtyping")
    ranks = []
    for column in table.columns:
        values = [row.values[column.key][0] for row in table.rows if row.about["backbone"] == "resnet18_imagenet"]
        mine = table.value(column.key, method="asmil", backbone="resnet18_imagenet")
        ranks.append(1 + sum(value > mine for value in values))
    return _ruled(max(ranks) <= 2, f"ranks in print: {', '.join(map(str, ranks))}; not run here")


def survival_best() -> Ruling:
    """ASMIL has the best mean C-index."""
    table = printed_table("survival")
    means = {row.about["method"]: sum(v[0] for v in row.values.values()) / len(row.values) for row in table.rows}
    mine = means.pop("asmil")
    best = max(means, key=lambda method: means[method])
    why = f"printed means: asmil {mine:.4f}, {best} {means[best]:.4f}, a lead below every sd; not run here"
    return _ruled(mine > means[best], why)


WITHOUT_RUNS: dict[str, Callable[[], Ruling]] = {
    "competitive-resnet": competitive_resnet,
    "survival-best": survival_best,
}
"""Rules for rankings that were not run: whether the printed table supports the claim."""

RULES: dict[str, Callable[[], Ruling]] = {
    "gain-bracs": gain_bracs,
    "gain-c17": gain_camelyon17,
    "gain-c16": gain_camelyon16,
    "sparse-more-gain": more_gain_where_sparse,
    "plug-in-max": largest_plug_in_gain,
    "drop-less-spread": drop_less_spread,
    "foundation-features": foundation_features,
    "loc-specificity": specificity,
    "loc-all-regions": all_regions,
    "classic-4-of-5": classic_wins,
    "flops-vs-mhim": flops_against_mhim,
    "anchor-train-overhead": training_overhead,
}
