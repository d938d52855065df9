"""Metrics, tests and attention statistics; blocks are told apart by what they hold, whatever their name.

What a test refuses is null in a file. Where only rounding decides (no variance, no spread), a file may hold the null
of 0 / 0 or the number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.errors import AsmilError
from asmil.evaluation.statistics import (
    TTest,
    benjamini_hochberg,
    bootstrap_seeds_and_patients,
    combine_p,
    corrected_resampled_t,
    delong,
    fisher_if_independent,
    holm,
    paired_t,
    permutation_f1,
    stouffer_if_independent,
)
from asmil.evaluation.statistics.auc_comparison import auc_covariance
from asmil.tasks import intervals, metrics, weighted
from oracles.compare import Comparison
from oracles.sheet import Allowance, Content, Kind, OrNull, is_rows
from oracles.sheets.attention import ATTENTION_NUMBER, attention_numbers

Row = Mapping[str, Any]
Answer = Callable[[Row], dict[str, Any]]
Nulls = tuple[None, None]

GIVEN = frozenset(
    {"name", "y", "prob", "score", "score_a", "score_b", "pred_a", "pred_b", "n_classes", "patient", "differences"}
    | {"n_train", "n_test", "p", "q", "rng", "seed", "R"}
)
ERROR, FLOAT32_ERROR = 1e-9, 1e-6
FLOAT32 = frozenset({"f1_default_of_task_wrapper", "f1_macro", "auroc_default"})
REJECTED = re.compile(r"holm_reject_(\d)(\d+)")


def recognizes(content: Content) -> bool:
    """Whether a block is of a kind that is answered here."""
    return any(
        _answerer(row) is not None or recognizes(row)
        for block in content.values()
        for row in (block if is_rows(block) else [block])
        if isinstance(row, Mapping)
    )


def answer(sheet: Content) -> dict[str, Any]:
    """The answers to all blocks that are known: single ones, lists of them, and those within others."""
    answers: dict[str, Any] = {}
    for name, block in sheet.items():
        if is_rows(block):
            answers[name] = [_answer_row(row) for row in block]
        elif isinstance(block, Mapping):
            answers[name] = _answer_row(block)
    return answers


def allowance(key: str, official: NDArray[np.float64], beside: Content) -> Allowance:
    """1e-9, or 1e-6 for numbers made in float32; relative for values above 1."""
    scale = max(1.0, float(np.abs(official[np.isfinite(official)]).max(initial=0.0)))
    return Allowance(scale * (FLOAT32_ERROR if key in FLOAT32 and len(FLOAT32 & beside.keys()) else ERROR), scale)


def judge(path: str, official: Any, ours: Any) -> Comparison | None:
    """Lists of which some values are null: the same must be undefined, the others equal."""
    if ours is None and isinstance(official, list) and np.isnan(np.array(official, dtype=np.float64)).all():
        return Comparison(path, 0.0, 1.0, True)
    if ours is None or not isinstance(official, list) or None not in official or len(official) != len(ours):
        return None
    expected, found = np.array(official, dtype=np.float64), np.array(ours, dtype=np.float64)
    optional = np.array([isinstance(value, OrNull) for value in ours])
    undefined = np.isnan(expected)
    if (undefined & ~np.isnan(found) & ~optional).any() or (~undefined & np.isnan(found)).any():
        return Comparison(path, math.inf, 1.0, False, f"{list(ours)} instead of {official}")
    error = float(np.abs(expected - found)[~undefined].max(initial=0.0))
    return Comparison(path, error, 1.0, error <= ERROR, "" if error <= ERROR else f"off by {error:.2e}")


def _answerer(row: Row) -> Answer | None:
    if any(_has_predictions(part) for part in row.values()):
        return _permutations
    if "p" in row:
        return next((answerer for names, answerer in _OF_P if any(map(names.fullmatch, row))), None)
    return next((answerer for keys, answerer in _ANSWERERS if keys <= row.keys()), None)


def _answer_row(row: Row) -> dict[str, Any]:
    answerer = _answerer(row)
    try:
        return answer(row) if answerer is None else answerer(row)
    except AsmilError:
        return dict.fromkeys(row)


def _classification(row: Row) -> dict[str, Any]:
    target, probabilities = np.array(row["y"]), np.array(row["prob"], dtype=np.float64)
    n_classes = probabilities.shape[1]
    predicted = metrics.predicted_classes(probabilities)
    classes = metrics.per_class(target, probabilities)
    threshold = metrics.one_vs_rest_f1(target, probabilities)
    return {
        "argmax": predicted,
        "confusion_rows_true": metrics.confusion_matrix(target, predicted, n_classes),
        "accuracy": metrics.accuracy(target, predicted),
        "balanced_accuracy": metrics.balanced_accuracy(target, predicted, n_classes),
        "f1_per_class_argmax": metrics.f1_per_class(target, predicted, n_classes),
        "macro_f1_argmax": metrics.macro_f1(target, predicted, n_classes),
        "micro_f1_argmax": metrics.micro_f1(target, predicted),
        "weighted_f1_argmax": metrics.weighted_f1(target, predicted, n_classes),
        "precision_per_class": [of_class.precision for of_class in classes],
        "recall_per_class": [of_class.recall for of_class in classes],
        "one_vs_rest_threshold_half": {
            "f1_per_class": threshold.per_class,
            "macro_f1": threshold.macro,
            "rows_without_a_class": threshold.slides_without_class,
            "rows_with_two_classes": threshold.slides_with_several,
        },
        "auc_per_class": metrics.auc_per_class(target, probabilities),
        "macro_auc_ovr": _or_null_if_absent(metrics.macro_auc(target, probabilities), target, n_classes),
        "weighted_auc_ovr": _or_null_if_absent(metrics.weighted_mean_auc(target, probabilities), target, n_classes),
        "macro_auc_ovo": _or_null_if_absent(metrics.one_vs_one_auc(target, probabilities), target, n_classes),
        "torchmetrics": _as_torchmetrics(target, probabilities.astype(np.float32)),
    }


def _or_null_if_absent(value: float, target: NDArray[np.int64], n_classes: int) -> float:
    return value if len(np.unique(target)) == n_classes else OrNull(value)


def _as_torchmetrics(target: NDArray[np.int64], probabilities: NDArray[np.float32]) -> dict[str, float]:
    """Its rules: micro by default; macro-F1 over classes that occur or are called; an undefined AUC is 0."""
    n_classes = probabilities.shape[1]
    predicted = metrics.predicted_classes(probabilities)
    concerned = np.union1d(target, predicted)
    return {
        "f1_default_of_task_wrapper": metrics.micro_f1(target, predicted),
        "f1_macro": float(metrics.f1_per_class(target, predicted, n_classes)[concerned].mean()),
        "auroc_default": float(np.nan_to_num(metrics.auc_per_class(target, probabilities)).mean()),
    }


def _delong(row: Row) -> dict[str, Any]:
    (auc_a, auc_b), covariance, variance = auc_covariance(row["y"], row["score_a"], row["score_b"])
    answers: dict[str, Any] = {"auc_a": auc_a, "auc_b": auc_b, "cov": covariance, "var_difference": variance}
    if variance == 0 and auc_a != auc_b:
        infinite = math.copysign(math.inf, auc_a - auc_b)
        return dict.fromkeys(row) | answers | {"z": OrNull(infinite), "p_two_sided": OrNull(0.0)}
    found = delong(row["y"], row["score_a"], row["score_b"])
    return answers | {
        "z": OrNull(found.z) if variance == 0 else found.z,
        "p_two_sided": OrNull(found.p) if variance == 0 else found.p,
        "ci95_difference": found.interval,
        "ci95_auc_a_wald": found.interval_a,
        "ci95_auc_b_wald": found.interval_b,
    }


def _permutations(row: Row) -> dict[str, Any]:
    """Parts of a block; one without slides of its own draws patterns for the slides of the other."""
    slides = next(part for part in row.values() if _has_predictions(part))
    return {name: _permutation({**slides, **part}) for name, part in row.items() if isinstance(part, Mapping)}


def _has_predictions(part: Any) -> bool:
    return isinstance(part, Mapping) and {"y", "pred_a", "pred_b"} <= part.keys()


def _permutation(row: Row) -> dict[str, Any]:
    called = row["y"], row["pred_a"], row["pred_b"]
    slides = (*called, row.get("n_classes", 1 + max(map(max, called))), row.get("patient"))
    exact = permutation_f1(*slides, exact=True) if "n_patterns" in row else permutation_f1(*slides)
    answers: dict[str, Any] = {
        "macro_f1_a": exact.value_a,
        "macro_f1_b": exact.value_b,
        "observed_difference": exact.difference,
        "n_discordant": exact.n_discordant,
        "n_patterns": exact.patterns,
        "count_at_least_as_extreme": exact.count,
        "p_exact_two_sided": exact.p,
        "p_exact_one_sided_a_better": exact.p_one_sided,
    }
    if "R" in row:
        drawn = permutation_f1(*slides, resamples=row["R"], seed=row["seed"], exact=False)
        answers |= {"count": drawn.count, "p_value_plus_one": drawn.p}
    return answers


def _bootstrap(row: Row) -> dict[str, Any]:
    positive, score = np.array(row["y"]), np.array(row["score"], dtype=np.float64)
    patients = intervals.number_patients(row.get("patient", range(len(score))))
    by_patient, by_slide = (
        _resampled_auc(positive, score, units, row["R"], row["seed"]) for units in (patients, np.arange(len(score)))
    )
    kept = by_patient[~np.isnan(by_patient)]
    return {
        "auc": float(weighted.binary_auc(positive == 1, score, np.ones((1, len(score))))[0]),
        "skipped_single_class": len(by_patient) - len(kept),
        "percentile_ci95_patient": intervals.percentile_interval(by_patient),
        "bootstrap_mean": float(kept.mean()) if len(kept) else None,
        "bootstrap_sd": float(kept.std(ddof=1)) if len(kept) > 1 else None,
        "percentile_ci95_slide": intervals.percentile_interval(by_slide),
    }


def _resampled_auc(
    target: NDArray[np.int64], score: NDArray[np.float64], units: NDArray[np.intp], resamples: int, seed: int
) -> NDArray[np.float64]:
    weights = intervals.draw_patients(int(units.max()) + 1, resamples, seed)[:, units].astype(np.float64)
    return weighted.binary_auc(target == 1, score, weights)


def _seeds(row: Row) -> dict[str, Any]:
    target, a, b = (np.array(row[name], dtype=np.float64) for name in ("y", "score_a", "score_b"))
    found = bootstrap_seeds_and_patients("auc", target, a, b, row.get("patient"), row["R"], row["seed"])
    one = np.ones((1, len(target)))
    auc_a, auc_b = ([float(weighted.binary_auc(target == 1, score, one)[0]) for score in of] for of in (a, b))
    of_seeds = [_scores({"y": target, "score_a": of_a, "score_b": of_b}) for of_a, of_b in zip(a, b, strict=False)]
    ensemble = _scores({"y": target, "score_a": a.mean(axis=0), "score_b": b.mean(axis=0)})
    over_seeds = _t_test(paired_t, np.subtract(auc_a, auc_b)) if len(a) == len(b) else (None, None)
    return {
        "auc_a": auc_a,
        "auc_b": auc_b,
        "mean_difference": found.difference,
        "skipped": found.skipped,
        "percentile_ci95": found.interval,
        "bootstrap_sd": _null_if_nan(found.sd),
        "per_seed_delong_p": [of_seed["p_two_sided"] for of_seed in of_seeds],
        "ensemble_auc": [ensemble["auc_a"], ensemble["auc_b"]],
        "ensemble_delong_z": ensemble["z"],
        "ensemble_delong_p": ensemble["p_two_sided"],
        "seed_paired_t": over_seeds[0],
        "seed_paired_t_p": over_seeds[1],
    }


def _scores(row: Row) -> dict[str, Any]:
    return _seeds(row) if np.ndim(row["score_a"]) == 2 else _delong(row)


def _t_tests(row: Row) -> dict[str, Any]:
    differences = np.array(row["differences"], dtype=np.float64)
    corrected = _t_test(corrected_resampled_t, differences, row["n_train"], row["n_test"])
    naive = _t_test(paired_t, differences)
    return {
        "t_corrected": corrected[0],
        "df": len(differences) - 1,
        "p_corrected": corrected[1],
        "t_naive": naive[0],
        "p_naive": naive[1],
    }


def _t_test(test: Callable[..., TTest], differences: NDArray[np.float64], *sizes: float) -> tuple[float, float] | Nulls:
    """t and p; null where they are refused, and of 0 / 0 where all differences are 0."""
    try:
        found = test(differences, *sizes)
    except AsmilError:
        return None, None
    return (found.t, found.p) if np.ptp(differences) > 0 else (OrNull(found.t), OrNull(found.p))


def _family(row: Row) -> dict[str, Any]:
    adjusted = holm(row["p"])
    answers: dict[str, Any] = {"holm_adjusted": adjusted, "bh_adjusted": benjamini_hochberg(row["p"])}
    for key in row:
        level = REJECTED.fullmatch(key)
        if level is not None:
            answers[key] = adjusted <= float(f"{level[1]}.{level[2]}")
    return answers


def _combined(row: Row) -> dict[str, Any]:
    return {
        "bonferroni_min": combine_p(row["p"], "bonferroni"),
        "twice_mean": combine_p(row["p"], "twice_mean"),
        "twice_median": combine_p(row["p"], "twice_median"),
        "cauchy": combine_p(row["p"], "cauchy"),
        "harmonic_mean_raw": combine_p(row["p"], "harmonic_mean"),
        "fisher_invalid_here": fisher_if_independent(row["p"]),
        "stouffer_invalid_here": None if {0, 1} <= set(row["p"]) else stouffer_if_independent(row["p"]),
    }


def _null_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


_ANSWERERS: tuple[tuple[frozenset[str], Answer], ...] = (
    (frozenset({"y", "prob"}), _classification),
    (frozenset({"y", "score_a", "score_b"}), _scores),
    (frozenset({"y", "pred_a", "pred_b"}), _permutation),
    (frozenset({"y", "score"}), _bootstrap),
    (frozenset({"differences", "n_train", "n_test"}), _t_tests),
)
_OF_P: tuple[tuple[re.Pattern[str], Answer], ...] = (
    (re.compile(r"holm_.*|bh_.*"), _family),
    (re.compile(r"bonferroni_.*|twice_.*|cauchy|harmonic_.*|fisher_.*|stouffer_.*"), _combined),
    (ATTENTION_NUMBER, attention_numbers),
)

KIND = Kind("statistics", recognizes, GIVEN, answer, allowance, judge=judge)
