"""Comparing runs: each metric of each run, the paired differences between runs, and tests of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.bootstrap import draw_patients, percentile_interval
from asmil.evaluation.comparison.captions import cautions_of
from asmil.evaluation.comparison.findings import Comparison, Difference, EnsembleTest, FoldTest, RunScores
from asmil.evaluation.comparison.pair_tests import auc_test, f1_test, fold_test, part_sizes, seed_tests
from asmil.evaluation.comparison.paired_predictions import ComparedRun, PairedPredictions
from asmil.evaluation.comparison.pairing import names_of, open_runs, pair_runs, pairs_of, refuse_comparison
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.statistics import Draws, draw_seeds_and_patients, holm, summarize_seed_bootstrap
from asmil.reporting import Estimate
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.prediction_format import Metric


def compare_runs(
    runs: Sequence[Path | str],
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    *,
    reference: Path | str | None = None,
    all_pairs: bool = False,
    unit: UnitKind = "slide",
) -> Comparison:
    """Compare runs that were evaluated on the same slides of the same cohort.

    reference: the run the others are compared with, by default the first; all_pairs: compare every pair of runs
    unit: `patient` averages the predictions of a patient's slides first
    A run that cannot be read is reported in `problems`, and the others are compared.
    """
    refuse_comparison(runs, role, resamples, reference, all_pairs, unit)
    opened, problems = open_runs(runs, reference)
    names = names_of(opened)
    paired = pair_runs(opened, names, role, unit)
    rows = paired.rows
    scores, skipped = _scores(paired, resamples, seed)
    pairs = pairs_of(opened, names, reference, all_pairs)
    sizes = {pair: _part_sizes(paired, pair, role, unit) for pair in pairs}
    differences = _with_holm(
        [
            replace(
                _with_tests(paired, found, seed),
                folds=_over_folds(scores, found, sizes[found.run, found.reference]),
            )
            for found in _differences(paired, pairs, resamples, seed)
        ]
    )
    return Comparison(
        task=rows.task,
        role=role,
        unit=unit,
        metrics=paired.metrics,
        runs=tuple(scores.values()),
        differences=tuple(differences),
        reference=None if all_pairs else pairs[0][1],
        n_slides=len(set(rows.slides)),
        n_patients=paired.n_patients,
        n_folds=len(set(rows.folds)),
        folds_joined=not rows.folds_overlap and all(metric.joins_folds for metric in paired.metrics),
        resamples=resamples,
        skipped=skipped,
        bootstrap_seed=seed,
        family=sum(not math.isnan(found.p_holm) for found in differences),
        warnings=tuple(cautions_of(paired, differences)),
        problems=tuple(problems),
    )


def _scores(paired: PairedPredictions, resamples: int, seed: int) -> tuple[dict[str, RunScores], int]:
    """Every run with its metrics, and how many draws of patients were left out."""
    counts = draw_patients(paired.n_patients, resamples, seed)
    drawn = paired.under(counts, list(paired.runs.values()))
    scores = {}
    for name, run in paired.runs.items():
        metrics = {metric.name: _estimate(paired, run, metric, drawn[name, metric.name]) for metric in paired.metrics}
        method, preset = (str(run.run.setting(key) or "unknown") for key in ("method", "preset"))
        scores[name] = RunScores(name, str(run.run.path), method, preset, run.seeds, metrics)
    skipped = int(np.isnan(next(iter(drawn.values()))).any(axis=1).sum())
    return scores, skipped


def _estimate(paired: PairedPredictions, run: ComparedRun, metric: Metric, drawn: Floats) -> Estimate:
    per_seed = paired.per_seed(run, metric)
    return Estimate(
        value=float(per_seed.mean()),
        interval=percentile_interval(drawn.mean(axis=1)),
        n=paired.n_patients,
        per_seed=dict(zip(run.seeds, per_seed.tolist(), strict=True)),
        per_training=paired.per_training(run, metric),
    )


def _differences(
    paired: PairedPredictions, pairs: Sequence[tuple[str, str]], resamples: int, seed: int
) -> Iterator[Difference]:
    """Every pair (run, reference) in every metric, with the bootstrap over seeds and patients.

    Pairs with the same numbers of seeds have the same draws, which are evaluated once.
    """
    known: dict[tuple[int, int], tuple[Draws, dict[tuple[str, str], Floats]]] = {}
    for run, reference in pairs:
        ours, theirs = paired.runs[run], paired.runs[reference]
        sizes = len(ours.seeds), len(theirs.seeds)
        if sizes not in known:
            draws = draw_seeds_and_patients(*sizes, paired.n_patients, resamples, seed)
            involved = [one for one in paired.runs.values() if len(one.seeds) in sizes]
            known[sizes] = draws, paired.under(draws.patients, involved)
        draws, values = known[sizes]
        for metric in paired.metrics:
            difference = float(paired.per_seed(ours, metric).mean() - paired.per_seed(theirs, metric).mean())
            found = summarize_seed_bootstrap(
                difference, values[run, metric.name], values[reference, metric.name], draws
            )
            estimate = Estimate(
                difference, found.interval, how="bootstrap over seeds and patients", skipped=found.skipped
            )
            yield Difference(run, reference, metric, estimate, found.sd)


def _with_tests(paired: PairedPredictions, found: Difference, seed: int) -> Difference:
    """The difference with the test of the seed ensembles and those of single seeds, where the metric has a test."""
    if found.metric.paired_test is None:
        return found

    def test(ours: Floats, theirs: Floats) -> EnsembleTest:
        if found.metric.paired_test == "delong":
            return auc_test(paired.rows, ours, theirs)
        return f1_test(paired.rows, ours, theirs, seed)

    run, reference = paired.runs[found.run], paired.runs[found.reference]
    by_seed = [test(ours, theirs).p for ours, theirs in zip(run.predictions, reference.predictions, strict=False)]
    return replace(
        found,
        ensemble=test(run.predictions.mean(axis=0), reference.predictions.mean(axis=0)),
        per_seed=seed_tests(run.seeds, reference.seeds, by_seed),
    )


def _part_sizes(
    paired: PairedPredictions, pair: tuple[str, str], role: Role, unit: UnitKind
) -> tuple[float, float] | str:
    """Mean sizes of a fold's training part and evaluated part; a sentence if `splits.csv` does not have them."""
    counted: UnitKind = "patient" if paired.rows.task.by_patient else unit
    try:
        # where the training parts differ, the smaller one: it gives the larger p
        return min(part_sizes(paired.runs[name].run.path, role, counted) for name in pair)
    except AsmilError as error:
        return str(error)


def _over_folds(
    scores: Mapping[str, RunScores], found: Difference, sizes: tuple[float, float] | str
) -> FoldTest | None:
    ours, theirs = (scores[name].metrics[found.metric.name].per_fold for name in (found.run, found.reference))
    if len(ours) < 2:
        return None
    return fold_test([ours[fold] - theirs[fold] for fold in ours], sizes)


def _with_holm(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with the p-values of their ensemble tests adjusted over all that have one."""
    family = [place for place, one in enumerate(differences) if not math.isnan(one.p)]
    adjusted = dict(zip(family, holm([differences[place].p for place in family]).tolist(), strict=True))
    return [replace(one, p_holm=adjusted.get(place, math.nan)) for place, one in enumerate(differences)]
