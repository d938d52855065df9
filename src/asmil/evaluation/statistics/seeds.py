"""Is a method better on new patients? A two-level bootstrap over seeds and patients.

A method is trained S times and evaluated on one test set. Its value is the mean over seeds, which depends on
both the seeds and the patients. A resample draws both: seeds for each model separately, patients once for both
(each with all its slides), since both were evaluated on the same patients.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.reporting import Interval
from asmil.tables.arrays import Floats
from asmil.tasks.base import MetricFunction
from asmil.tasks.checked_arrays import Classes, classes_of, numbers_of, same_length
from asmil.tasks.classification import weighted_macro_auc, weighted_macro_f1
from asmil.tasks.intervals import generator_of, percentile_interval, under_draws, units_of
from asmil.tasks.weighted import binary_auc, has_two_classes

SeedMetric = Literal["auc", "macro_auc", "macro_f1"]
METRICS: dict[SeedMetric, MetricFunction] = {
    "auc": lambda target, scores, weights: binary_auc(target == 1, scores[:, 1], weights),
    "macro_auc": weighted_macro_auc,
    "macro_f1": weighted_macro_f1,
}


@dataclass(frozen=True)
class SeedBootstrap:
    """The difference a - b of seed means, its 95 % percentile interval, standard deviation and two-sided p-value.

    p: twice the share of resamples on the far side of 0, the observed one included; below 0.05 if, apart from
    rounding, the interval excludes 0
    resamples: how many were drawn; skipped: how many of them are undefined, such as those with a single class.
    """

    difference: float
    interval: Interval
    sd: float
    resamples: int
    skipped: int
    p: float


@dataclass(frozen=True)
class Draws:
    """R resamples as counts: how often each seed of a (R x S_a), of b (R x S_b) and each patient (R x P) was drawn."""

    seeds_a: npt.NDArray[np.int64]
    seeds_b: npt.NDArray[np.int64]
    patients: npt.NDArray[np.int64]


def bootstrap_seeds_and_patients(
    metric: SeedMetric,
    target: npt.ArrayLike,
    predictions_a: npt.ArrayLike,
    predictions_b: npt.ArrayLike,
    patients: Sequence[Hashable] | npt.NDArray[np.generic] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> SeedBootstrap:
    """Interval of the difference of two metrics (means over seeds), by resampling seeds and patients.

    target: n class indices. predictions: S x n scores of class 1 (two classes; for macro_f1 probabilities, and above
    0.5 class 1 is predicted), or S x n x K probabilities; the two models may have different numbers of seeds.
    patients: n names; without them slides are resampled independently. Resamples with a single class are skipped.
    """
    if metric not in METRICS:
        raise AsmilError(f"the metric {metric!r} is unknown: {did_you_mean(str(metric), METRICS)}")
    a, b = _predictions("predictions_a", predictions_a, metric), _predictions("predictions_b", predictions_b, metric)
    if a.shape[2] != b.shape[2]:
        raise AsmilError(
            f"predictions_a and predictions_b have {a.shape[2]} and {b.shape[2]} classes; compare models of one task"
        )
    truth = classes_of("target", target, a.shape[2])
    same_length(target=len(truth), predictions_a=a.shape[1], predictions_b=b.shape[1])
    if len(np.unique(truth)) < 2:
        raise AsmilError("target: all slides belong to one class, so the metric is undefined; add slides of another")
    if resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")

    units = units_of(patients, len(truth))
    draws = draw_seeds_and_patients(len(a), len(b), int(units.max()) + 1, resamples, seed)
    values_a, values_b = (_under_draws(metric, truth, values, draws.patients, units) for values in (a, b))
    unweighted = np.ones((1, len(truth)))
    difference = float(_values(metric, truth, a, unweighted).mean() - _values(metric, truth, b, unweighted).mean())
    return summarize_seed_bootstrap(difference, values_a, values_b, draws)


def draw_seeds_and_patients(n_seeds_a: int, n_seeds_b: int, n_patients: int, resamples: int, seed: int) -> Draws:
    """Draw R resamples with replacement: for each, first the seeds of a, then those of b, then the patients."""
    generator = generator_of(seed)
    sizes = (n_seeds_a, n_seeds_b, n_patients)
    counts = tuple(np.zeros((resamples, size), dtype=np.int64) for size in sizes)
    for resample in range(resamples):
        for of, size in zip(counts, sizes, strict=True):
            of[resample] = np.bincount(generator.integers(0, size, size), minlength=size)
    return Draws(*counts)


def summarize_seed_bootstrap(difference: float, values_a: Floats, values_b: Floats, draws: Draws) -> SeedBootstrap:
    """The interval, from the values of every seed under every resample of patients (R x S_a, R x S_b).

    Resamples in which a drawn seed has no value (nan) are skipped and counted.
    """
    samples = _mean_over_drawn(values_a, draws.seeds_a) - _mean_over_drawn(values_b, draws.seeds_b)
    kept = samples[~np.isnan(samples)]
    return SeedBootstrap(
        difference=difference,
        interval=percentile_interval(kept),
        sd=float(kept.std(ddof=1)) if len(kept) > 1 else float("nan"),
        resamples=len(samples),
        skipped=len(samples) - len(kept),
        p=bootstrap_p(kept),
    )


def bootstrap_p(samples: Floats) -> float:
    """The two-sided p-value of resampled differences: twice the share at or beyond 0, with one added to both counts.

    >>> bootstrap_p(np.array([0.1, 0.2, -0.1, 0.3]))
    0.8
    """
    defined = samples[~np.isnan(samples)]
    if not len(defined):
        return float("nan")
    beyond = min(int((defined <= 0).sum()), int((defined >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(defined) + 1))


def _mean_over_drawn(values: Floats, seeds: npt.NDArray[np.int64]) -> Floats:
    weighted_values = np.where(seeds > 0, values, 0.0) * seeds
    return np.asarray(weighted_values.sum(axis=1) / seeds.sum(axis=1))


def _predictions(name: str, values: npt.ArrayLike, metric: SeedMetric) -> Floats:
    """S x n x K; scores of class 1 become two columns."""
    given = numbers_of(name, values)
    if given.ndim == 2 and given.size:
        if metric == "macro_f1" and (given.min() < 0 or given.max() > 1):
            raise AsmilError(f"{name}: for macro_f1 give probabilities from 0 to 1, not other scores")
        # for an AUC use the negative score: unlike 1 - score it is exact, so ties are preserved
        return np.stack([1 - given if metric == "macro_f1" else -given, given], axis=2)
    if given.ndim != 3 or given.shape[2] < 2 or not given.size:
        raise AsmilError(f"{name}: give S x n scores or S x n x K probabilities; the shape is {given.shape}")
    if metric == "auc" and given.shape[2] > 2:
        raise AsmilError(f"{name}: auc is for two classes, but there are {given.shape[2]}; use macro_auc")
    return given


def _under_draws(
    metric: SeedMetric, truth: Classes, predictions: Floats, drawn: npt.NDArray[np.int64], units: Classes
) -> Floats:
    """R x S values under the resamples of patients; nan for resamples with a single class."""

    def measure(counts: Floats) -> dict[str, Floats]:
        weights = counts[:, units]
        kept = has_two_classes(truth, predictions.shape[2], weights)
        return {metric: np.where(kept[:, None], _values(metric, truth, predictions, weights), np.nan)}

    return under_draws(measure, drawn, len(truth))[metric]


def _values(metric: SeedMetric, truth: Classes, predictions: Floats, weights: Floats) -> Floats:
    return np.stack([METRICS[metric](truth, of_seed, weights) for of_seed in predictions], axis=1)
