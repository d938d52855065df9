"""From the results of jobs to one report: means, spreads, and the published figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asmil.classic.bag_set import BagSet
from asmil.classic.leak import ColumnScores
from asmil.classic.published import PAPER, SOURCE, WHY_NOT_COMPARABLE
from asmil.classic.settings import Contender
from asmil.version import __version__


def describe_set(bag_set: BagSet, scores: ColumnScores) -> dict[str, Any]:
    """The facts about a set, with the column that predicts the label best."""
    sizes = np.bincount(bag_set.bag)
    best = scores.best
    return {
        "name": bag_set.name,
        "bags": bag_set.n_bags,
        "positive": int(bag_set.label.sum()),
        "instances": len(bag_set.bag),
        "features": bag_set.n_features,
        "bag_sizes": [int(sizes.min()), float(np.median(sizes)), int(sizes.max())],
        "best_column": {
            "column": best + 1,
            "per_instance": round(float(scores.per_instance[best]), 4),
            "per_bag": round(float(scores.per_bag[best]), 4),
        },
        "fingerprint": bag_set.fingerprint(),
    }


def summarize(results: Iterable[Mapping[str, Any]], rules: Sequence[str]) -> list[dict[str, Any]]:
    """One entry per set, method and rule: mean and spread over all folds of all seeds, and the seeds one by one."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["set"], result["name"]), []).append(result)
    return [
        _entry(set_name, name, rule, sorted(of_seeds, key=lambda result: int(result["seed"])))
        for (set_name, name), of_seeds in groups.items()
        for rule in rules
        if rule in of_seeds[0]["rules"]
    ]


def make_report(
    results: Sequence[Mapping[str, Any]],
    rules: Sequence[str],
    sets: Sequence[Mapping[str, Any]],
    rows: Sequence[Contender],
    protocol: Mapping[str, Any],
) -> dict[str, Any]:
    """All that `classic.json` holds."""
    return {
        "asmil": __version__,
        "protocol": dict(protocol),
        "sets": [dict(one) for one in sets],
        "methods": [{"name": row.name, "method": row.method, "settings": row.settings()} for row in rows],
        "results": summarize(results, rules),
        "paper": {
            "source": SOURCE,
            "accuracy": {method: {name: list(pair) for name, pair in of.items()} for method, of in PAPER.items()},
            "why_not_comparable": list(WHY_NOT_COMPARABLE),
        },
    }


def _entry(set_name: str, name: str, rule: str, of_seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    folds = np.array([result["rules"][rule]["folds"] for result in of_seeds])
    aucs = [result["rules"][rule]["auc"] for result in of_seeds]
    per_seed = folds.mean(axis=1)
    return {
        "set": set_name,
        "name": name,
        "rule": rule,
        "mean": float(folds.mean()),
        "sd_folds": float(folds.std(ddof=1)),
        "n_folds": int(folds.size),
        "seeds": [int(result["seed"]) for result in of_seeds],
        "per_seed": per_seed.tolist(),
        "sd_seeds": float(per_seed.std(ddof=1)) if len(per_seed) > 1 else None,
        "auc": float(np.mean(aucs)),
        "auc_per_seed": aucs,
        "seconds": round(sum(result["seconds"] for result in of_seeds), 1),
    }
