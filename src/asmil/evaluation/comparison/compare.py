"""Compare runs: the metrics of each run, the paired differences between runs, and tests of these differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from asmil.cohort.splits import Splits
from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError
from asmil.evaluation import statistics
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
    given_names,
    open_runs,
    pair_runs,
    pairs_of,
)
from asmil.evaluation.run_alarms import alarms_given
from asmil.evaluation.run_evaluation import Request, Role
from asmil.evaluation.slide_evaluation import few_per_class
from asmil.evaluation.statistics import CombinationRule, Draws
from asmil.reporting import Estimate, Interval
from asmil.reporting.estimate import AT_THE_EDGE, TOO_FEW, UNDEFINED
from asmil.runs.epochs import training_seconds
from asmil.tables.arrays import Floats
from asmil.tasks import intervals
from asmil.tasks.base import Metric
from asmil.tasks.metrics import predicted_classes
from asmil.tasks.weighted import has_two_classes

SEED_RULE: CombinationRule = "twice_median"
PER_CLASS = "DeLong per class, Holm over classes"


def compare_runs(
    runs: Sequence[Path | str],
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    *,
    reference: Path | str | None = None,
    all_pairs: bool = False,
    unit: UnitKind = "slide",
    names: Sequence[str] = (),
) -> Comparison:
    """Compare runs that were evaluated on the same slides of the same cohort.

    reference: the run the others are compared with, by default the first; all_pairs: compare every pair of runs
    unit: `patient` averages the predictions of a patient's slides first
    names: of the runs, in their order; by default those of their folders
    A run that cannot be read is reported in `problems`, and the others are compared.
    """
    asked = Request(role, resamples, seed, unit)
    opened, problems = open_runs(runs, reference, all_pairs)
    paired = pair_runs(opened, asked, given_names(runs, names, opened) if names else None)
    rows, pairs = paired.rows, pairs_of(paired, reference, all_pairs)
    scores, skipped = _scores(paired, asked)
    sizes = {pair: _part_sizes(paired, pair, asked) for pair in pairs}
    differences = _with_holm(
        [
            replace(
                _with_tests(paired, difference, asked),
                folds=_over_folds(scores, difference, sizes[difference.run, difference.reference]),
            )
            for difference in _differences(paired, pairs, scores, asked)
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
        family=sum(not math.isnan(row.p_holm) for row in differences),
        ensemble_family=sum(row.ensemble is not None and not math.isnan(row.ensemble.p_holm) for row in differences),
        paired=paired,
        alarms=tuple(_alarms(paired, unit)),
        warnings=tuple(_warnings(paired, scores, differences)),
        problems=tuple(problems),
    )


def scores_and_differences(
    paired: PairedPredictions, pairs: Sequence[tuple[str, str]], asked: Request
) -> tuple[dict[str, RunScores], list[Difference]]:
    """Every run with its metrics, and the difference of every pair (run, reference) without further tests."""
    scores, _ = _scores(paired, asked)
    return scores, list(_differences(paired, pairs, scores, asked))


def _scores(paired: PairedPredictions, asked: Request) -> tuple[dict[str, RunScores], int]:
    """Every run with its metrics, and the number of skipped bootstrap resamples."""
    counts = intervals.draw_patients(paired.n_patients, asked.resamples, asked.seed)
    drawn = paired.under(counts, list(paired.runs.values()))
    scores = {}
    for name, run in paired.runs.items():
        metrics = {}
        for metric in paired.metrics:
            per_seed = paired.per_seed(run, metric)
            metrics[metric.name] = intervals.estimate(
                float(per_seed.mean()),
                drawn[name, metric.name].mean(axis=1),
                at_edge=partial(_at_edge, paired, run, metric),
                n=paired.n_patients,
                per_seed=dict(zip(run.seeds, per_seed.tolist(), strict=True)),
                per_training=paired.per_training(run, metric),
            )
        settings = run.run.settings
        method, preset = settings.method or "unknown", settings.preset or "unknown"
        seconds = training_seconds(run.run.layout)
        scores[name] = RunScores(name, str(run.run.path), method, preset, run.seeds, metrics, seconds)
    return scores, int(np.isnan(next(iter(drawn.values()))).any(axis=1).sum())


def _differences(
    paired: PairedPredictions, pairs: Sequence[tuple[str, str]], scores: Mapping[str, RunScores], asked: Request
) -> Iterator[Difference]:
    """The difference of every pair (run, reference) in every metric, by a bootstrap over seeds and patients.

    Pairs with the same numbers of seeds share their resamples, which are evaluated once.
    """
    known: dict[tuple[int, int], tuple[Draws, dict[tuple[str, str], Floats]]] = {}
    for run, reference in pairs:
        ours, theirs = paired.runs[run], paired.runs[reference]
        sizes = len(ours.seeds), len(theirs.seeds)
        if sizes not in known:
            draws = statistics.draw_seeds_and_patients(*sizes, paired.n_patients, asked.resamples, asked.seed)
            involved = [candidate for candidate in paired.runs.values() if len(candidate.seeds) in sizes]
            known[sizes] = draws, paired.under(draws.patients, involved)
        draws, values = known[sizes]
        for metric in paired.metrics:
            difference = float(paired.per_seed(ours, metric).mean() - paired.per_seed(theirs, metric).mean())
            bootstrap = statistics.summarize_seed_bootstrap(
                difference, values[run, metric.name], values[reference, metric.name], draws
            )
            single = [scores[name].metrics[metric.name] for name in (run, reference)]
            estimated = Estimate(
                difference, bootstrap.interval, how="bootstrap over seeds and patients", skipped=bootstrap.skipped
            )
            p = math.nan if any(map(intervals.is_at_edge, single)) else bootstrap.p
            yield Difference(run, reference, metric, _beside_edge(estimated, *single), bootstrap.sd, p)


def _beside_edge(difference: Estimate, run: Estimate, reference: Estimate) -> Estimate:
    """The difference of two values; if one of them is at the edge, with an interval that allows for this."""
    if not (intervals.is_at_edge(run) or intervals.is_at_edge(reference)):
        return difference
    interval = intervals.difference_interval(run, reference)
    return replace(difference, interval=interval, how=AT_THE_EDGE if interval.is_defined else TOO_FEW)


def _at_edge(paired: PairedPredictions, run: ComparedRun, metric: Metric) -> Interval:
    """The interval of a metric that is the same in all resamples of patients."""
    rows = paired.rows
    return intervals.widest(
        intervals.edge_interval(rows.task, metric, rows.truth[part], of_seed[part], rows.patients[part].tolist())
        for of_seed in run.predictions
        for part in paired.parts[metric.name]
    )


def _with_tests(paired: PairedPredictions, difference: Difference, asked: Request) -> Difference:
    """Add the tests of the seed ensembles and of single seeds to a difference, if the metric has a test."""
    if difference.metric.paired_test is None:
        return difference

    def test(ours: Floats, theirs: Floats) -> _Tested:
        if difference.metric.paired_test == "delong":
            return _auc_test(paired.rows, ours, theirs)
        return _f1_test(paired.rows, ours, theirs, asked.seed)

    run, reference = paired.runs[difference.run], paired.runs[difference.reference]
    p = tuple(test(ours, theirs).p for ours, theirs in zip(run.predictions, reference.predictions, strict=False))
    per_seed = None
    # with a single pair of seeds this would repeat the test of the ensembles
    if len(p) > 1 and not any(map(math.isnan, p)):
        seeds = tuple(zip(run.seeds, reference.seeds, strict=False))
        per_seed = SeedTests(seeds, p, SEED_RULE, statistics.combine_p(p, SEED_RULE))
    means = run.predictions.mean(axis=0), reference.predictions.mean(axis=0)
    ensemble = _ensemble_test(paired, difference.metric, *means, test(*means), asked)
    return replace(difference, ensemble=ensemble, per_seed=per_seed)


@dataclass(frozen=True)
class _Tested:
    """A test of two predictions of the same slides; several classes: the p-value of whether any of them differs."""

    test: str
    p: float
    classes: tuple[ClassAuc, ...] = ()
    reason: str = ""


def _ensemble_test(
    paired: PairedPredictions, metric: Metric, ours: Floats, theirs: Floats, tested: _Tested, asked: Request
) -> EnsembleTest:
    """The difference of two ensembles (n x K each) with its bootstrap over patients, and the p-value of its test.

    There is no DeLong test of a mean over classes: its p-value is that of the bootstrap.
    """
    assert metric.function is not None
    (joined, ours), (_, theirs) = paired.rows.by_slide(ours), paired.rows.by_slide(theirs)
    names, function = joined.patients.tolist(), metric.function
    patient = intervals.number_patients(names)

    def measure(counts: Floats) -> dict[str, Floats]:
        values = [function(joined.truth, prediction, counts[:, patient]) for prediction in (ours, theirs)]
        several = has_two_classes(joined.truth, len(joined.task.names), counts[:, patient])
        return {"values": np.where(several[:, None], np.stack(values, axis=1), np.nan)}

    plain = measure(np.ones((1, paired.n_patients)))["values"][0]
    drawn = intervals.draw_patients(paired.n_patients, asked.resamples, asked.seed)
    values = intervals.under_draws(measure, drawn, len(patient))["values"]
    run, reference = (
        intervals.estimate(
            float(plain[k]),
            values[:, k],
            at_edge=partial(intervals.edge_interval, joined.task, metric, joined.truth, prediction, names),
        )
        for k, prediction in enumerate((ours, theirs))
    )
    samples = values[:, 0] - values[:, 1]
    difference = Estimate(
        run.value - reference.value, intervals.percentile_interval(samples), skipped=int(np.isnan(samples).sum())
    )
    test, p = tested.test, tested.p
    if test == PER_CLASS:
        test, p = "bootstrap over patients", statistics.bootstrap_p(samples)
    if metric.paired_test == "delong" and (intervals.is_at_edge(run) or intervals.is_at_edge(reference)):
        p = math.nan  # the variance of an AUC of 1 is estimated as 0
    return EnsembleTest(
        test, run.value, reference.value, _beside_edge(difference, run, reference), p, tested.classes, tested.reason
    )


def _auc_test(rows: Rows, prediction: Floats, reference: Floats) -> _Tested:
    """DeLong's test of two n x K probabilities: for the second class if K = 2, else for every class, with Holm.

    For K > 2 the p-value is the smallest Holm-adjusted one: it tests whether the AUC of any class differs.
    """
    (joined, ours), (_, theirs) = rows.by_slide(prediction), rows.by_slide(reference)
    labels = [1] if len(rows.task.names) == 2 else range(len(rows.task.names))
    tested, reasons = [], []
    for label in labels:
        name = rows.task.names[label]
        try:
            test = statistics.delong((joined.truth == label).astype(np.intp), ours[:, label], theirs[:, label])
        except AsmilError as error:
            reasons.append(f"class {name}: {error}")
        else:
            interval = UNDEFINED if intervals.has_collapsed(test.interval) else test.interval
            tested.append(ClassAuc(name, test.auc_a, test.auc_b, test.difference, interval, test.z, test.p))
    adjusted = statistics.holm([row.p for row in tested])
    classes = tuple(replace(row, p_holm=float(p)) for row, p in zip(tested, adjusted, strict=True))
    return _Tested(
        test="DeLong" if len(rows.task.names) == 2 else PER_CLASS,
        p=min((row.p_holm for row in classes), default=math.nan),
        classes=classes,
        reason="; ".join(reasons),
    )


def _f1_test(rows: Rows, prediction: Floats, reference: Floats, seed: int) -> _Tested:
    """The permutation test of macro-F1: the predicted classes of a patient's slides are swapped together."""
    (joined, ours), (_, theirs) = rows.by_slide(prediction), rows.by_slide(reference)
    n_classes = len(rows.task.names)
    called = [predicted_classes(part) for part in (ours, theirs)]
    test = statistics.permutation_f1(joined.truth, called[0], called[1], n_classes, joined.patients.tolist(), seed=seed)
    how = "exact" if test.exact else f"{test.patterns} random patterns"
    return _Tested(f"permutation by patient, {how}", test.p)


def _over_folds(
    scores: Mapping[str, RunScores], difference: Difference, sizes: tuple[float, float] | str
) -> FoldTest | None:
    """The corrected resampled t-test over folds; sizes: of training and test set, or why they are unknown."""
    name = difference.metric.name
    ours, theirs = (scores[run].metrics[name].per_fold for run in (difference.run, difference.reference))
    if len(ours) < 2:
        return None
    differences = tuple(ours[fold] - theirs[fold] for fold in ours)
    mean, df = Estimate(float(np.mean(differences)), how="corrected resampled t"), len(differences) - 1
    n_train, n_test = (math.nan, math.nan) if isinstance(sizes, str) else sizes
    try:
        if isinstance(sizes, str):
            raise AsmilError(sizes)
        if any(map(math.isnan, differences)):
            raise AsmilError("the metric is undefined in a fold")
        test = statistics.corrected_resampled_t(differences, n_train, n_test)
    except AsmilError as error:
        return FoldTest(differences, mean, n_train, n_test, math.nan, df, math.nan, str(error))
    reach = float(stdtrit(df, 0.975)) * math.sqrt(
        (1 / len(differences) + n_test / n_train) * np.var(differences, ddof=1)
    )
    mean = replace(mean, interval=Interval(mean.value - reach, mean.value + reach))
    return FoldTest(differences, mean, n_train, n_test, test.t, test.df, test.p)


def _part_sizes(paired: PairedPredictions, pair: tuple[str, str], asked: Request) -> tuple[float, float] | str:
    """Mean sizes of the training set and the evaluated set over folds, from `splits.csv`; a sentence if unknown."""
    unit = "patient" if paired.rows.task.by_patient else asked.unit
    sizes = []
    for name in pair:
        file = paired.runs[name].run.layout.splits
        try:
            table = Splits.load(file).table.drop_duplicates([unit, "fold", "role"])
        except AsmilError as error:
            return str(error)
        counts = table.groupby(["fold", "role"]).size().unstack(fill_value=0)
        counts = counts.reindex(columns=["train", asked.role], fill_value=0)
        if (counts == 0).any(axis=None):
            return f"{file}: a fold has no training slides or no slides to evaluate; check the splits"
        sizes.append((float(counts["train"].mean()), float(counts[asked.role].mean())))
    # if the training sets differ, use the smaller one: it gives the larger p-value
    return min(sizes)


def _with_holm(differences: Sequence[Difference]) -> list[Difference]:
    """Adjust p-values by Holm's method: those of means over seeds, and those of ensembles, are a family each."""
    means = _adjusted([row.p for row in differences])
    ensembles = _adjusted([math.nan if row.ensemble is None else row.ensemble.p for row in differences])
    return [
        replace(
            row, p_holm=of_mean, ensemble=None if row.ensemble is None else replace(row.ensemble, p_holm=of_ensemble)
        )
        for row, of_mean, of_ensemble in zip(differences, means, ensembles, strict=True)
    ]


def _adjusted(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of those that are defined; the others stay nan."""
    family = [index for index, value in enumerate(p) if not math.isnan(value)]
    adjusted = dict(zip(family, statistics.holm([p[index] for index in family]).tolist(), strict=True))
    return [adjusted.get(index, math.nan) for index in range(len(p))]


def _alarms(paired: PairedPredictions, unit: UnitKind) -> Iterator[str]:
    """Reasons not to use the predictions or maps of a run, each with the name of the run."""
    for name, run in paired.runs.items():
        predictions = run.predictions.mean(axis=0)
        for alarm in alarms_given(run.run.path, paired.rows.task, paired.rows.truth, predictions, unit):
            yield f"{name}: {alarm.short}"


def _warnings(
    paired: PairedPredictions, scores: Mapping[str, RunScores], differences: Sequence[Difference]
) -> Iterator[str]:
    """Caveats about this comparison, one sentence each."""
    rows, runs = paired.rows, list(paired.runs.values())
    opposite = [words for difference in differences if (words := difference.opposite_words)]
    if opposite:
        yield f"Opposite signs: {'; '.join(opposite)}. Which run is better depends on which of them you use."
    yield from few_per_class(rows.task, rows.truth, rows.patients.tolist())
    at_edge = [
        f"{metric.title} of {name}"
        for name, run in scores.items()
        for metric in paired.metrics
        if intervals.is_at_edge(run.metrics[metric.name])
    ]
    if at_edge:
        yield (
            f"The same in all resamples: {', '.join(at_edge)}. Intervals of its differences are combined from the "
            "intervals of both runs, and they have no p-value of a bootstrap or of DeLong's test."
        )
    absent = absent_classes(rows.task.names, rows.truth) if rows.task.part_name == "class" else []
    if absent:
        yield absent_sentence(rows.task.names, absent)
    for metric in paired.metrics:
        evaluated = np.concatenate([rows.folds[part] for part in paired.parts[metric.name]])
        left_out = sorted(set(rows.folds.tolist()) - set(evaluated.tolist()))
        if left_out:
            named = ", ".join(runs[0].run.fold_names[fold] for fold in left_out)
            yield f"{metric.title} is undefined in {named}; its mean is over the other folds."
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
    for difference in differences:
        what = f"{difference.run} compared with {difference.reference}, {difference.metric.title}"
        if difference.ensemble is not None and difference.ensemble.reason:
            yield f"{what}: {difference.ensemble.test} is incomplete ({difference.ensemble.reason})."
        if difference.folds is not None and difference.folds.reason:
            yield f"{what}: no t-test over folds ({difference.folds.reason})."


def _other_training_parts(runs: Sequence[ComparedRun]) -> Iterator[str]:
    first = _training_part(runs[0])
    for run in runs[1:]:
        other = _training_part(run)
        if first is not None and other is not None and other != first:
            fold, slide = sorted(first ^ other)[0]
            yield (
                f"{run.name} and {runs[0].name} were not trained on the same slides (e.g. {slide} in "
                f"{run.run.fold_names[fold]}): part of the difference may come from the training data."
            )


def _training_part(run: ComparedRun) -> frozenset[tuple[int, str]] | None:
    try:
        table = Splits.load(run.run.layout.splits).table
    except AsmilError:
        return None
    chosen = table[table["role"] == "train"]
    return frozenset(zip(chosen["fold"].tolist(), chosen["slide"].astype(str), strict=True))
