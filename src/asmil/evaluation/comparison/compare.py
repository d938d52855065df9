"""Compare runs: the metrics of each run, the paired differences between runs, and tests of these differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from asmil.cohort.splits import Splits
from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation.classification import absent_classes, absent_sentence
from asmil.evaluation.comparison.findings import (
    ClassAuc,
    Comparison,
    Difference,
    EnsembleTest,
    FoldTest,
    RunScores,
    SeedTests,
)
from asmil.evaluation.comparison.pairing import (
    ComparedRun,
    PairedPredictions,
    Rows,
    open_runs,
    pair_runs,
    pairs_of,
)
from asmil.evaluation.evaluate import Request, Role
from asmil.evaluation.run_alarms import alarms_given
from asmil.evaluation.statistics import (
    CombinationRule,
    Draws,
    combine_p,
    corrected_resampled_t,
    delong,
    draw_seeds_and_patients,
    holm,
    permutation_f1,
    summarize_seed_bootstrap,
)
from asmil.reporting import Estimate
from asmil.tasks.bootstrap import draw_patients, estimate
from asmil.tasks.checked_arrays import Floats
from asmil.tasks.metrics import macro_auc, macro_f1, predicted_classes
from asmil.training.layout import RunLayout

SEED_RULE: CombinationRule = "twice_median"


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
    asked = Request(role, resamples, seed, unit)
    opened, problems = open_runs(runs, reference, all_pairs)
    paired = pair_runs(opened, asked)
    rows, pairs = paired.rows, pairs_of(paired, reference, all_pairs)
    scores, skipped = _scores(paired, asked)
    sizes = {pair: _part_sizes(paired, pair, asked) for pair in pairs}
    differences = _with_holm(
        [
            replace(
                _with_tests(paired, found, seed),
                folds=_over_folds(scores, found, sizes[found.run, found.reference]),
            )
            for found in _differences(paired, pairs, asked)
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
        paired=paired,
        alarms=tuple(_alarms(paired)),
        warnings=tuple(_warnings(paired, differences)),
        problems=tuple(problems),
    )


def _scores(paired: PairedPredictions, asked: Request) -> tuple[dict[str, RunScores], int]:
    """Every run with its metrics, and the number of skipped bootstrap resamples."""
    counts = draw_patients(paired.n_patients, asked.resamples, asked.seed)
    drawn = paired.under(counts, list(paired.runs.values()))
    scores = {}
    for name, run in paired.runs.items():
        metrics = {}
        for metric in paired.metrics:
            per_seed = paired.per_seed(run, metric)
            metrics[metric.name] = estimate(
                float(per_seed.mean()),
                drawn[name, metric.name].mean(axis=1),
                n=paired.n_patients,
                per_seed=dict(zip(run.seeds, per_seed.tolist(), strict=True)),
                per_training=paired.per_training(run, metric),
            )
        method, preset = (str(run.run.setting(key) or "unknown") for key in ("method", "preset"))
        scores[name] = RunScores(name, str(run.run.path), method, preset, run.seeds, metrics)
    return scores, int(np.isnan(next(iter(drawn.values()))).any(axis=1).sum())


def _differences(paired: PairedPredictions, pairs: Sequence[tuple[str, str]], asked: Request) -> Iterator[Difference]:
    """The difference of every pair (run, reference) in every metric, by a bootstrap over seeds and patients.

    Pairs with the same numbers of seeds share their resamples, which are evaluated once.
    """
    known: dict[tuple[int, int], tuple[Draws, dict[tuple[str, str], Floats]]] = {}
    for run, reference in pairs:
        ours, theirs = paired.runs[run], paired.runs[reference]
        sizes = len(ours.seeds), len(theirs.seeds)
        if sizes not in known:
            draws = draw_seeds_and_patients(*sizes, paired.n_patients, asked.resamples, asked.seed)
            involved = [one for one in paired.runs.values() if len(one.seeds) in sizes]
            known[sizes] = draws, paired.under(draws.patients, involved)
        draws, values = known[sizes]
        for metric in paired.metrics:
            difference = float(paired.per_seed(ours, metric).mean() - paired.per_seed(theirs, metric).mean())
            found = summarize_seed_bootstrap(
                difference, values[run, metric.name], values[reference, metric.name], draws
            )
            how = "bootstrap over seeds and patients"
            yield Difference(
                run,
                reference,
                metric,
                Estimate(difference, found.interval, how=how, skipped=found.skipped),
                found.sd,
            )


def _with_tests(paired: PairedPredictions, found: Difference, seed: int) -> Difference:
    """Add the tests of the seed ensembles and of single seeds to a difference, if the metric has a test."""
    if found.metric.paired_test is None:
        return found

    def test(ours: Floats, theirs: Floats) -> EnsembleTest:
        if found.metric.paired_test == "delong":
            return _auc_test(paired.rows, ours, theirs)
        return _f1_test(paired.rows, ours, theirs, seed)

    run, reference = paired.runs[found.run], paired.runs[found.reference]
    p = tuple(test(ours, theirs).p for ours, theirs in zip(run.predictions, reference.predictions, strict=False))
    per_seed = None
    # with a single pair of seeds this would repeat the test of the ensembles
    if len(p) > 1 and not any(map(math.isnan, p)):
        seeds = tuple(zip(run.seeds, reference.seeds, strict=False))
        per_seed = SeedTests(seeds, p, SEED_RULE, combine_p(p, SEED_RULE))
    ensemble = test(run.predictions.mean(axis=0), reference.predictions.mean(axis=0))
    return replace(found, ensemble=ensemble, per_seed=per_seed)


def _auc_test(rows: Rows, prediction: Floats, reference: Floats) -> EnsembleTest:
    """DeLong's test of two n x K probabilities: for the second class if K = 2, else for every class, with Holm.

    For K > 2 the p-value of the pair is the smallest Holm-adjusted one: it tests whether the AUC of any class differs.
    """
    (joined, ours), (_, theirs) = rows.by_slide(prediction), rows.by_slide(reference)
    labels = [1] if len(rows.task.names) == 2 else range(len(rows.task.names))
    found, reasons = [], []
    for label in labels:
        name = rows.task.names[label]
        try:
            test = delong((joined.truth == label).astype(np.intp), ours[:, label], theirs[:, label])
        except AsmilError as error:
            reasons.append(f"class {name}: {error}")
        else:
            found.append(ClassAuc(name, test.auc_a, test.auc_b, test.difference, test.interval, test.z, test.p))
    adjusted = holm([one.p for one in found])
    classes = tuple(replace(one, p_holm=float(p)) for one, p in zip(found, adjusted, strict=True))
    return EnsembleTest(
        test="DeLong" if len(rows.task.names) == 2 else "DeLong per class, Holm over classes",
        value=macro_auc(joined.truth, ours),
        value_reference=macro_auc(joined.truth, theirs),
        p=min((one.p_holm for one in classes), default=math.nan),
        classes=classes,
        reason="; ".join(reasons),
    )


def _f1_test(rows: Rows, prediction: Floats, reference: Floats, seed: int) -> EnsembleTest:
    """The permutation test of macro-F1: the predicted classes of a patient's slides are swapped together."""
    (joined, ours), (_, theirs) = rows.by_slide(prediction), rows.by_slide(reference)
    n_classes = len(rows.task.names)
    called = [predicted_classes(part) for part in (ours, theirs)]
    test = permutation_f1(joined.truth, called[0], called[1], n_classes, joined.patients.tolist(), seed=seed)
    values = [macro_f1(joined.truth, part, n_classes) for part in called]
    how = "exact" if test.exact else f"{test.patterns} random patterns"
    return EnsembleTest(f"permutation by patient, {how}", values[0], values[1], test.p)


def _over_folds(
    scores: Mapping[str, RunScores], found: Difference, sizes: tuple[float, float] | str
) -> FoldTest | None:
    """The corrected resampled t-test over folds; sizes: of training and test set, or why they are unknown."""
    ours, theirs = (scores[name].metrics[found.metric.name].per_fold for name in (found.run, found.reference))
    if len(ours) < 2:
        return None
    differences = tuple(ours[fold] - theirs[fold] for fold in ours)
    n_train, n_test = (math.nan, math.nan) if isinstance(sizes, str) else sizes
    reason = sizes if isinstance(sizes, str) else ""
    if not reason and any(map(math.isnan, differences)):
        reason = "the metric is undefined in a fold"
    if not reason:
        try:
            test = corrected_resampled_t(differences, n_train, n_test)
            return FoldTest(differences, n_train, n_test, test.t, test.df, test.p)
        except AsmilError as error:
            reason = str(error)
    return FoldTest(differences, n_train, n_test, math.nan, len(differences) - 1, math.nan, reason)


def _part_sizes(paired: PairedPredictions, pair: tuple[str, str], asked: Request) -> tuple[float, float] | str:
    """Mean sizes of the training set and the evaluated set over folds, from `splits.csv`; a sentence if unknown."""
    unit = "patient" if paired.rows.task.by_patient else asked.unit
    found = []
    for name in pair:
        file = RunLayout(paired.runs[name].run.path).splits
        try:
            table = Splits.load(file).table.drop_duplicates([unit, "fold", "role"])
        except AsmilError as error:
            return str(error)
        counts = table.groupby(["fold", "role"]).size().unstack(fill_value=0)
        counts = counts.reindex(columns=["train", asked.role], fill_value=0)
        if (counts == 0).any(axis=None):
            return f"{file}: a fold has no training slides or no slides to evaluate; check the splits"
        found.append((float(counts["train"].mean()), float(counts[asked.role].mean())))
    # if the training sets differ, use the smaller one: it gives the larger p-value
    return min(found)


def _with_holm(differences: Sequence[Difference]) -> list[Difference]:
    """Adjust the p-values of all ensemble tests by Holm's method."""
    family = [place for place, one in enumerate(differences) if not math.isnan(one.p)]
    adjusted = dict(zip(family, holm([differences[place].p for place in family]).tolist(), strict=True))
    return [replace(one, p_holm=adjusted.get(place, math.nan)) for place, one in enumerate(differences)]


def _alarms(paired: PairedPredictions) -> Iterator[str]:
    """Reasons not to use the predictions or maps of a run, each with the name of the run."""
    for name, run in paired.runs.items():
        predictions = run.predictions.mean(axis=0)
        for alarm in alarms_given(run.run.path, paired.rows.task, paired.rows.truth, predictions):
            yield f"{name}: {alarm.short}"


def _warnings(paired: PairedPredictions, differences: Sequence[Difference]) -> Iterator[str]:
    """Caveats about this comparison, one sentence each."""
    rows, runs = paired.rows, list(paired.runs.values())
    absent = absent_classes(rows.task.names, rows.truth) if rows.task.part_name == "class" else []
    if absent:
        yield absent_sentence(rows.task.names, absent)
    for metric in paired.metrics:
        evaluated = np.concatenate([rows.folds[part] for part in paired.parts[metric.name]])
        left_out = sorted(set(rows.folds.tolist()) - set(evaluated.tolist()))
        if left_out:
            named = ", ".join(map(str, left_out))
            yield f"{metric.title} is undefined in fold {named}; its mean is over the other folds."
    most = max(Counter(dict(zip(rows.slides, rows.patients, strict=True)).values()).values())
    if most > 1 and any(metric.paired_test == "delong" for metric in rows.task.compared):
        yield (
            f"Patients have up to {most} slides. Bootstrap and permutation test resample whole patients, but DeLong's "
            "test treats slides as independent, so its p-value is too small; use `--unit patient` for one prediction "
            "per patient."
        )
    single = [run.name for run in runs if len(run.seeds) == 1]
    if single:
        yield (
            f"{', '.join(single)}: with one seed the interval of a difference ignores the variance of training. It "
            "compares these trained models, not the methods."
        )
    yield from _other_training_parts(runs)
    for found in differences:
        what = f"{found.run} compared with {found.reference}, {found.metric.title}"
        if found.ensemble is not None and found.ensemble.reason:
            yield f"{what}: {found.ensemble.test} is incomplete ({found.ensemble.reason})."
        if found.folds is not None and found.folds.reason:
            yield f"{what}: no t-test over folds ({found.folds.reason})."


def _other_training_parts(runs: Sequence[ComparedRun]) -> Iterator[str]:
    first = _training_part(runs[0])
    for run in runs[1:]:
        found = _training_part(run)
        if first is not None and found is not None and found != first:
            fold, slide = sorted(first ^ found)[0]
            yield (
                f"{run.name} and {runs[0].name} were not trained on the same slides (e.g. {slide} in fold "
                f"{fold}): part of the difference may come from the training data."
            )


def _training_part(run: ComparedRun) -> frozenset[tuple[int, str]] | None:
    try:
        table = Splits.load(RunLayout(run.run.path).splits).table
    except AsmilError:
        return None
    chosen = table[table["role"] == "train"]
    return frozenset(zip(chosen["fold"].tolist(), chosen["slide"].astype(str), strict=True))
