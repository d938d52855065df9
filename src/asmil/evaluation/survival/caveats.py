"""What a reader must know to read the numbers of a survival report, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from asmil.evaluation.bootstrap import Interval
from asmil.evaluation.run_sentences import sentences_of_runs
from asmil.evaluation.survival.predictions import TestedPart
from asmil.evaluation.survival.risk_groups import RiskGroups
from asmil.evaluation.survival.summary import METRIC_TITLES, FoldMetric, SurvivalEvaluation


def warnings_of(
    parts: Sequence[TestedPart],
    metrics: Mapping[str, FoldMetric],
    groups: RiskGroups,
    window: Interval | None,
    auc_at: Mapping[float, FoldMetric],
    resamples: int,
) -> Iterator[str]:
    """What is undefined or left out in this evaluation."""
    without = [key for key, value in metrics["c_index"].per_training.items() if math.isnan(value)]
    if without:
        named = ", ".join(f"fold {fold} seed {seed}" for fold, seed in without)
        yield (
            f"No two patients can be compared in {named}: the C-index is undefined there, and the mean is that of the "
            f"other {len(parts) - len(without)} trainings."
        )
    if any(part.curve_times is None for part in parts):
        yield "The predictions hold no survival curves (a Cox model without a baseline): there is no Brier score."
    if window is None:
        yield "The folds have too few events or too short a follow-up in common for a mean AUC(t) or Brier score."
    for t, auc in auc_at.items():
        undefined = sum(map(math.isnan, auc.per_training.values()))
        if undefined:
            yield (
                f"AUC({t:g} months) is undefined for {undefined} of {len(parts)} trainings: by then nobody had the "
                "event, or nobody is followed longer."
            )
    if len(groups.groups) < 2:
        yield "The risks do not separate the patients into groups: there is no log-rank test."
    for name, metric in metrics.items():
        if metric.skipped:
            yield (
                f"{METRIC_TITLES[name]}: {metric.skipped} of {resamples} resamples left it undefined for a training "
                "and are not in its interval."
            )


def survival_caveats(evaluations: Sequence[SurvivalEvaluation]) -> list[str]:
    """Sentences that hold for all runs, then those of single runs."""
    sentences = [
        "One sample is one patient. Risks of different trainings have no common scale, so the C-index and AUC(t) are "
        "never taken over two folds at once: every training is judged on the test patients of its own fold. Values are "
        "means over folds and seeds.",
        "Intervals hold the middle 95 % of a bootstrap over patients of that mean. They say how much the choice of "
        "patients matters, the standard deviation over folds how much the folds differ. Trainings of several folds "
        "share training patients, so neither is an interval for a new training.",
        "C-index: a pair counts if the one with the earlier time has the event (at equal times: if the other is "
        "censored); equal risks count 1/2, so 0.5 is chance. The strict form leaves out equal times and counts equal "
        "risks 0.",
        "AUC(t): who has the event by t against who is followed longer than t, ranked by the same risk at every t. "
        "The Brier score is the squared error of the predicted survival at t: lower is better, and Kaplan-Meier, "
        "which gives every patient the same curve, is the scale. Both weight patients by the inverse probability "
        "of being followed, estimated by Kaplan-Meier on all evaluated patients; this assumes that censoring does "
        "not depend on the risk.",
        "The Kaplan-Meier reference was fitted on the evaluated patients themselves, so it is harder to beat than one "
        "fitted on the training part. Between the ends of time bins predicted curves are straight lines.",
        "Risk groups: the cut lies at the "
        + " or ".join(dict.fromkeys(evaluation.risk_groups.cut for evaluation in evaluations))
        + " of the predicted risks among the patients of a fold (ranks, averaged over seeds), and the groups of all "
        "folds are joined. No outcome was used for the cut, but it needs a whole group of patients: a single new "
        "patient needs a cut fixed beforehand. The log-rank test takes the groups as given and does not know that "
        "folds share training patients; with cross-validation its p-value is somewhat too small.",
    ]
    if len({evaluation.patients for evaluation in evaluations}) > 1:
        sentences.append("The runs were not evaluated on the same patients; their numbers do not compare.")
    elif len(evaluations) > 1:
        sentences.append(
            "Overlapping intervals of two runs are no test of their difference: both were measured on the same "
            "patients."
        )
    return sentences + sentences_of_runs(evaluations)
