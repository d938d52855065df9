"""Oracle files of statistics: answered from what is given alone, whatever their blocks are called."""

from __future__ import annotations

import copy
import json
import math
import re

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import jensenshannon
from sklearn import metrics as sk

from oracles.__main__ import check_file
from oracles.sheets import recognize
from shared_data import oracle_files, read_oracle


def verdict_on(tmp_path, content):
    path = tmp_path / "any_name.json"
    path.write_text(json.dumps(content))
    return check_file(path)


def classified(k, n, seed, absent=False):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.r_[np.arange(k - absent), rng.integers(0, k - absent, n)])
    probabilities = rng.dirichlet(np.ones(k), len(y)) * 0.6 + 0.4 * np.eye(k)[y]
    called, labels = probabilities.argmax(axis=1), list(range(k))
    f1 = sk.f1_score(y, called, labels=labels, average=None, zero_division=0)
    aucs = [float(sk.roc_auc_score(y == c, probabilities[:, c])) if c in y else None for c in labels]
    block = {"y": y.tolist(), "prob": probabilities.tolist(), "argmax": called.tolist(), "auc_per_class": aucs}
    block |= {"f1_per_class_argmax": f1.tolist(), "macro_f1_argmax": f1.mean(), "micro_f1_argmax": np.mean(y == called)}
    block["torchmetrics"] = {
        "f1_default_of_task_wrapper": float(np.float32(np.mean(y == called))),
        "f1_macro": float(sk.f1_score(y, called, average="macro", zero_division=0)),
        "auroc_default": float(np.mean([auc or 0.0 for auc in aucs])),
    }
    if k > 2 and not absent:
        block["macro_auc_ovo"] = sk.roc_auc_score(y, probabilities, multi_class="ovo")
    return block


def swapped(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, 12)
    a, b = (np.where(rng.random(12) < share, rng.integers(0, 4, 12), y) for share in (0.2, 0.6))
    f1 = [sk.f1_score(y, called, labels=range(4), average="macro", zero_division=0) for called in (a, b)]
    swaps = np.random.Generator(np.random.PCG64(seed)).integers(0, 2, size=(50, 12)) == 1
    drawn = [
        sk.f1_score(y, np.where(swap, b, a), labels=range(4), average="macro", zero_division=0)
        - sk.f1_score(y, np.where(swap, a, b), labels=range(4), average="macro", zero_division=0)
        for swap in swaps
    ]
    count = int((np.abs(drawn) >= abs(f1[0] - f1[1]) - 1e-12).sum())
    exact = {"y": y.tolist(), "pred_a": a.tolist(), "pred_b": b.tolist(), "n_classes": 4}
    exact |= {"macro_f1_a": f1[0], "observed_difference": f1[0] - f1[1], "n_patterns": 2 ** int((a != b).sum())}
    return {
        "exact": exact,
        "monte_carlo": {"seed": seed, "R": 50, "count": count, "p_value_plus_one": (count + 1) / 51},
    }


def attended(n, seed):
    p, q = np.random.default_rng(seed).dirichlet(np.full(n, 0.4), 2)
    row = {"name": f"drawn {n}", "p": p.tolist(), "q": q.tolist(), "entropy_nats": stats.entropy(p)}
    row |= {"jsd_nats": jensenshannon(p, q) ** 2, "kl_p_q": stats.entropy(p, q), "top2_mass": sum(sorted(p)[-2:])}
    heavy = [set(np.argsort(-one)[:5]) for one in (p, q)]
    row |= {"top5_overlap_jaccard": len(heavy[0] & heavy[1]) / len(heavy[0] | heavy[1])}
    row |= {"spearman": stats.spearmanr(p, q).statistic, "kendall_tau_b": stats.kendalltau(p, q).statistic}
    return row | {"normalised_entropy": stats.entropy(p) / math.log(n)}


@pytest.fixture(scope="module")
def written_file():
    scores = [0.1, 0.4, 0.4, 0.8, 0.7]
    same_order = {"y": [0, 0, 1, 1, 0], "score_a": scores, "score_b": [2 * s for s in scores]}
    one_tile = {"name": "one", "p": [1.0], "q": [1.0], "entropy_nats": 0.0, "normalised_entropy": None}
    return {
        "versions": {"numpy": "0"},
        "five_classes": classified(5, 40, 1),
        "two": classified(2, 30, 2),
        "many_blocks": [classified(3, 25, 3), classified(4, 25, 4, absent=True)],
        "swaps_a": swapped(5),
        "swaps_b": [swapped(6), swapped(7)],
        "zero": [same_order | {"var_difference": 0.0, "z": None, "p_two_sided": None}],
        "ordered": [same_order | {"auc_a": 4.5 / 6, "z": 0.0, "p_two_sided": 1.0}],
        "weights": [attended(9, 8), attended(60, 9), one_tile | {"spearman": None, "kendall_tau_b": None}],
        "folds": {"differences": [0.1, 0.3, -0.1], "n_train": 8, "n_test": 2, "t_naive": math.sqrt(0.75), "df": 2},
        "family": [{"p": [0.01, 0.04], "holm_adjusted": [0.02, 0.04], "holm_reject_001": [False, False]}],
    }


@pytest.fixture
def another_file(written_file):
    return copy.deepcopy(written_file)


def test_a_file_of_our_own_with_other_blocks_passes(tmp_path, another_file):
    verdict = verdict_on(tmp_path, another_file)
    assert (verdict.passed, verdict.method) == (True, "statistics"), verdict.details
    assert int(re.findall(r"\d+", verdict.details)[0]) == 79


def test_each_block_alone_is_recognized(tmp_path, another_file):
    for name, block in another_file.items():
        if name != "versions":
            assert verdict_on(tmp_path, {"some": block}).passed, name


CHANGES = [
    ("five_classes", ("auc_per_class", 2), 1e-8),
    ("two", ("torchmetrics", "auroc_default"), 1e-5),
    ("many_blocks", (1, "auc_per_class", 1), 1e-8),
    ("swaps_a", ("monte_carlo", "count"), 1),
    ("swaps_b", (1, "exact", "observed_difference"), 1e-8),
    ("ordered", (0, "p_two_sided"), -1e-8),
    ("weights", (0, "jsd_nats"), 1e-8),
    ("folds", ("df",), 1),
    ("family", (0, "holm_adjusted", 1), 1e-8),
]


@pytest.mark.parametrize(("block", "place", "by"), CHANGES, ids=str)
def test_every_number_counts(block, place, by, tmp_path, another_file):
    content = {block: another_file[block]}
    holder = content[block]
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] += by
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed is False
    assert verdict.details.count("off by") == 1


def test_what_is_defined_is_not_null_and_the_reverse(tmp_path, another_file):
    content = {"block": another_file["many_blocks"][1]}
    for place, value in ((0, None), (3, 0.5)):
        changed = copy.deepcopy(content)
        changed["block"]["auc_per_class"][place] = value
        assert verdict_on(tmp_path, changed).passed is False


REFUSED = {
    "no_variance": {"y": [0, 0, 1, 1], "score_a": [0, 1, 2, 3], "score_b": [1, 1, 1, 1], "auc_b": 0.5, "z": None},
    "infinite": {"y": [0, 0, 1, 1], "score_a": [0, 1, 2, 3], "score_b": [1, 1, 1, 1], "var_difference": 0, "z": "inf"},
    "one_positive": {"y": [0, 0, 1], "score_a": [1, 2, 3], "score_b": [3, 2, 1], "z": None, "cov": [[None] * 2] * 2},
    "one_fold": {"differences": [0.1], "n_train": 8, "n_test": 2, "t_corrected": None, "df": 0, "p_naive": None},
    "no_spread": {"differences": [0.2, 0.2], "n_train": 8, "n_test": 2, "t_naive": None, "p_corrected": None},
    "all_zero": {"differences": [0.0, 0.0], "n_train": 8, "n_test": 2, "t_naive": None, "p_corrected": None},
    "ends": {"p": [0.0, 1.0], "stouffer_invalid_here": None, "fisher_invalid_here": 0.0, "harmonic_mean_raw": 0.0},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_null(name, tmp_path):
    verdict = verdict_on(tmp_path, {name: REFUSED[name]})
    assert verdict.passed, verdict.details


@pytest.mark.parametrize("n_seeds", [1, 2])
def test_few_seeds(n_seeds, tmp_path):
    y, rng = [0, 0, 1, 1, 0, 1], np.random.default_rng(3)
    a, b = rng.random((2, n_seeds, 6)).round(1)
    aucs = [[sk.roc_auc_score(y, score) for score in of] for of in (a, b)]
    block = {"y": y, "score_a": a.tolist(), "score_b": b.tolist(), "R": 20, "seed": 1, "auc_a": aucs[0]}
    block |= {"ensemble_auc": [sk.roc_auc_score(y, a.mean(axis=0)), sk.roc_auc_score(y, b.mean(axis=0))]}
    t = stats.ttest_rel(*aucs) if n_seeds > 1 else None
    block |= {"seed_paired_t": t and t.statistic, "seed_paired_t_p": t and t.pvalue}
    verdict = verdict_on(tmp_path, {"seeds": block})
    assert verdict.passed, verdict.details


def test_blocks_are_known_by_any_of_their_numbers_and_within_others(tmp_path):
    content = {
        "family": {"p": [0.01, 0.02], "bh_adjusted": [0.02, 0.02]},
        "combined": {"p": [0.01, 0.02], "cauchy": 0.013326},
        "attention": {"p": [0.5, 0.5], "gini": 0.0},
        "slides": {"y": [0, 1], "score": [0.1, 0.9], "R": 9, "seed": 0, "auc": 1.0},
        "swaps": {"y": [0, 1, 1], "pred_a": [0, 1, 1], "pred_b": [0, 1, 0], "p_exact_two_sided": 1.0},
        "groups": {"first": {"p": [0.01, 0.02], "holm_adjusted": [0.02, 0.02]}, "second": [{"p": [1.0], "gini": 0.0}]},
    }
    content["combined"]["cauchy"] = 0.5 - math.atan(np.tan((0.5 - np.array([0.01, 0.02])) * math.pi).mean()) / math.pi
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed, verdict.details
    assert verdict.details == "7 outputs"


@pytest.mark.parametrize("path", oracle_files("statistics*.json"))
def test_official_files_are_covered(path):
    verdict = check_file(path)
    assert (verdict.passed, verdict.method) == (True, "statistics"), verdict.details


def test_files_of_other_kinds_are_left_to_them():
    kind = recognize(read_oracle("normalizers"))
    assert kind is not None
    assert kind.name == "normalizers"
