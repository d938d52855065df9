"""Claims about printed numbers, decided by arithmetic on the paper's own tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from asmil.paper.claims.ruling import Ruling, ruled
from asmil.paper.printed import printed_table
from asmil.paper.recipes import RECIPES

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
    """The gain is larger on CAMELYON-16 and on CAMELYON-17, where tumor is sparse, than on BRACS; partly: undecided."""
    leads = {}
    for dataset in ("bracs", "camelyon16", "camelyon17"):
        pairs = (_vit(f"{dataset}_{metric}") for metric in ("f1", "auc"))
        leads[dataset] = [mine - best for mine, best, _ in pairs]
    larger = [
        lead > dense
        for name in leads
        if name != "bracs"
        for lead, dense in zip(leads[name], leads["bracs"], strict=True)
    ]
    listed = ", ".join(f"{dataset} {f1:+.3f} and {auc:+.3f}" for dataset, (f1, auc) in leads.items())
    why = f"lead in F1 and AUC: {listed}; {sum(larger)} of {len(larger)} larger than on BRACS"
    return Ruling("undecided", "print", why) if any(larger) and not all(larger) else _ruled(all(larger), why)


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
    why = f"above all others on {wins} sets in print; inferred: accuracy near 0.95 on FOX needs the label as input"
    return _ruled(wins >= 4, why)


def flops_against_mhim() -> Ruling:
    """ASMIL's operations are lower than or like MHIM's."""
    mine, theirs = _costs("infer_flops", "mhim")
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


def four_unstable_methods() -> Ruling:
    """The attention of four methods is unstable; a method that is not shown decides nothing."""
    shown = dict.fromkeys(row.method for row in RECIPES["dynamics"].rows if row.method != "asmil")
    why = f"the figures of attention over epochs show {len(shown)}: {', '.join(shown)}"
    return Ruling("supported" if len(shown) >= 4 else "undecided", "print", why)


def training_time_against_mhim() -> Ruling:
    """ASMIL trains in less than half of MHIM's time."""
    mine, theirs = _costs("train_time", "mhim")
    return _ruled(mine < theirs / 2, f"printed {mine:g} and {theirs:g} s per epoch, {theirs / mine:.2f} times")


def latency_and_memory() -> Ruling:
    """Inference takes 29.2 percent less time and 20.3 percent less memory than TransMIL's."""
    quoted = {"infer_time": 29.2, "infer_memory": 20.3}
    saved = {}
    for key in quoted:
        mine, theirs = _costs(key, "transmil")
        saved[key] = round(100 * (1 - mine / theirs), 1)
    why = f"the table gives {saved['infer_time']} % less time and {saved['infer_memory']} % less memory"
    return _ruled(saved == quoted, why)


def _costs(key: str, other: str) -> tuple[float, float]:
    table = printed_table("cost")
    return table.value(key, method="asmil"), table.value(key, method=other)


def update_gain_units() -> Ruling:
    """Moving the anchor after every batch gains 3.9 percent in F1 and 4.9 percent in AUC on BRACS, in one unit."""
    table = printed_table("update")
    quoted, points, relative = (3.9, 4.9), [], []
    for key in ("bracs_f1", "bracs_auc"):
        batch, epoch = (table.value(key, update=update) for update in ("batch", "epoch"))
        points.append(round(100 * (batch - epoch), 1))
        relative.append(round(100 * (batch / epoch - 1), 1))
    why = f"F1 and AUC rise by {points[0]} and {points[1]} points, or by {relative[0]} and {relative[1]} %"
    return _ruled(quoted in (tuple(points), tuple(relative)), why)


RULES: dict[str, Callable[[], Ruling]] = {
    "four-methods-unstable": four_unstable_methods,
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
    "mhim-training-time": training_time_against_mhim,
    "inference-latency-memory": latency_and_memory,
    "update-gain-units": update_gain_units,
}
