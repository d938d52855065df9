"""The results of a search: expected performance, whether attention pays, how sure the choice is, what would help."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from asmil.cohort.outcomes import outcomes_of
from asmil.cohort.source import FeatureInfo
from asmil.cohort.units import units_of
from asmil.evaluation.classification import Evaluation
from asmil.evaluation.comparison import compare_runs, write_comparison
from asmil.evaluation.evaluate import evaluate_run
from asmil.evaluation.report import write_report
from asmil.evaluation.run_evaluation import RunEvaluation
from asmil.experiments.auto.budget import SIMPLE
from asmil.experiments.auto.halving import ranking
from asmil.experiments.auto.jobs import metric_of
from asmil.experiments.auto.ladder import Candidate
from asmil.experiments.auto.search import Search, SearchResult
from asmil.reporting import Estimate
from asmil.reporting.formats import (
    format_interval_of,
    format_number,
    format_share,
    format_signed,
    format_signed_interval,
)
from asmil.runs.config import with_settings
from asmil.runs.description import describe
from asmil.runs.predictions import write_predictions
from asmil.runs.stored_labels import store_labels
from asmil.runs.writer import RunWriter
from asmil.tables.arrays import Floats
from asmil.tasks.base import PredictionFormat
from asmil.tasks.calibration import expected_calibration_error
from asmil.tasks.intervals import draw_patients, number_patients
from asmil.training.planning import FEWEST_IN_GROUP

Verdict = Literal["pays", "does not pay", "undecided", "no attention"]
TITLES = {"macro_auc": "AUC", "c_index": "C-index", "r2": "R²"}
CHANCE = {"macro_auc": 0.5, "c_index": 0.5, "r2": 0.0}
FEW_EPOCHS_SHARE = 0.4
"""Below this share of the usual epochs, the page warns that methods may be undertrained."""
SURE = 0.8
POOR_ECE = 0.1


@dataclass(frozen=True)
class Findings:
    """What the page and `auto.json` say.

    expected: the evaluation of the procedure on the patients of the outer folds
    tested: the metric of everything that was tested in all outer folds
    differences: the best attention method minus each simple candidate
    reference: the simple candidate that the verdict is about
    chosen: the candidate that the procedure chooses on all patients; won: in how many outer folds it did
    resampled: the share of bootstrap resamples of patients in which each finalist is best
    share: of the usual epochs that methods were trained for
    """

    expected: RunEvaluation
    tested: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]
    verdict: Verdict
    reference: Candidate | None
    chosen: Candidate
    won: int
    folds: int
    resampled: Mapping[str, float]
    calibration: str
    share: float
    hints: tuple[str, ...]

    @property
    def metric(self) -> str:
        """The name of the metric that candidates are chosen and reported by."""
        return metric_of(self.expected.run.format).name

    @property
    def title(self) -> str:
        """How the metric is called in sentences."""
        return TITLES[self.metric]

    @property
    def performance(self) -> Estimate:
        """The expected performance on new patients."""
        return self.expected.metrics[self.metric]

    @property
    def is_chance(self) -> bool:
        """Whether the expected performance cannot be told from chance."""
        interval = self.performance.interval
        return not interval.is_defined or interval.low <= CHANCE[self.metric]

    @property
    def is_unstable(self) -> bool:
        """Whether most outer folds chose another method than all patients together."""
        return 2 * self.won <= self.folds

    @property
    def contradicts(self) -> bool:
        """Whether the choice on all patients has attention although it does not pay, or none although it pays."""
        return (self.verdict, self.chosen.attends) in (("does not pay", True), ("pays", False))

    @property
    def attention_answer(self) -> str:
        """Whether attention pays, in one or two sentences."""
        if self.reference is None:
            return "No attention method was compared, so whether attention pays is open."
        difference, simple = self.differences[self.reference.name], _the(self.reference)
        size = f"{format_signed(difference.value)} {self.title} (95 % interval {signed_interval(difference)})"
        if self.verdict == "pays":
            return f"Attention pays here: {size} over {simple}."
        if self.verdict == "does not pay":
            advice = "" if self.contradicts else f" Use {_the(self.chosen)}."
            return f"Attention does not pay here: {size} compared with {simple}.{advice}"
        undecided = f"Undecided whether attention pays here: {size} compared with {simple}"
        if difference.interval.is_defined and difference.interval.high < 0:
            return (
                f"{undecided}, but methods were trained for {format_share(self.share)} of their usual epochs, of which "
                "attention needs more than a simple method."
            )
        if not difference.interval.is_defined:
            return f"{undecided}; there are too few patients for an interval."
        return f"{undecided}; the interval covers 0."

    @property
    def choice_answer(self) -> str:
        """The chosen method and its expected performance, in one sentence."""
        number = f"{format_number(self.performance.value)} (95 % interval {format_interval_of(self.performance)})"
        if self.is_unstable:
            chosen_by = f"only {self.won} of {self.folds} outer folds" if self.won else "no outer fold"
            doubt = f"Chosen on all patients: {self.chosen}; but {chosen_by} chose it, so the choice is uncertain."
            return f"{doubt} Such a choice is expected to have {self.title} {number} on new patients."
        return f"Chosen: {self.chosen}. Expected {self.title} on new patients: {number}."


def find(search: Search, result: SearchResult, infos: Sequence[FeatureInfo], resamples: int = 2000) -> Findings:
    """Evaluate what was tested; the run folders of the outer folds are written again, with their pages."""
    folder = search.out / "outer"
    shutil.rmtree(folder, ignore_errors=True)
    runs = {role: _write_run(search, result, role, folder / role, infos) for role in result.tested}
    expected = evaluate_run(runs["procedure"], resamples=resamples)
    write_report(expected)
    name = metric_of(expected.run.format).name
    compared = [runs[role] for role in (*SIMPLE, "attention") if role in runs]
    comparison = compare_runs(compared, resamples=resamples, all_pairs=True)
    write_comparison(comparison, folder)
    tested = {scores.name: scores.metrics[name] for scores in comparison.runs}
    differences = {
        difference.reference: difference.estimate
        for difference in comparison.differences
        if difference.run == "attention" and difference.metric.name == name
    }
    verdict, reference = attention_verdict(differences, result.plan.share)
    chosen = search.candidates[ranking(result.final)[0]]
    winners = Counter(ranking(history)[0] for history in result.choices)
    resampled = win_shares(expected.run.format, result.finalists)
    calibration, poor = _calibration(expected)
    findings = Findings(
        expected=expected,
        tested={"procedure": expected.metrics[name], **tested},
        differences=differences,
        verdict=verdict,
        reference=None if reference is None else search.candidates[reference],
        chosen=chosen,
        won=winners[chosen.name],
        folds=len(result.choices),
        resampled=resampled,
        calibration=calibration,
        share=result.plan.share,
        hints=(),
    )
    return replace(findings, hints=tuple(_hints(findings, result, poor)))


def attention_verdict(differences: Mapping[str, Estimate], share: float = 1.0) -> tuple[Verdict, str | None]:
    """Whether attention pays, and the simple candidate that decides: attention must be better than all of them.

    differences: attention minus each simple candidate; empty if no candidate has attention
    share: of the usual epochs; with too few, that attention does not pay is undecided, since it needs more of them
    """

    def value(name: str) -> float:
        return differences[name].value

    if not differences:
        return "no attention", None
    intervals = {name: difference.interval for name, difference in differences.items()}
    beaten = {name for name, interval in intervals.items() if interval.is_defined and interval.low > 0}
    if len(beaten) == len(differences):
        return "pays", min(differences, key=value)
    worse = [name for name, interval in intervals.items() if interval.is_defined and interval.high < 0]
    if worse:
        verdict: Verdict = "undecided" if share < FEW_EPOCHS_SHARE else "does not pay"
        return verdict, min(worse, key=value)
    return "undecided", min((name for name in intervals if name not in beaten), key=value)


def win_shares(
    form: PredictionFormat, tables: Mapping[str, pd.DataFrame], resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """In which share of bootstrap resamples of patients each table of predictions has the best mean over folds.

    tables: predictions of the same slides in the same folds
    """
    function = metric_of(form).function
    assert function is not None
    ordered = {name: table.sort_values(["fold", "slide"], ignore_index=True) for name, table in tables.items()}
    first = next(iter(ordered.values()))
    patient = number_patients(first["patient"].tolist())
    counts = draw_patients(int(patient.max()) + 1, resamples, seed).astype(np.float64)
    folds = [np.flatnonzero(first["fold"] == fold) for fold in first["fold"].unique()]

    def values(table: pd.DataFrame) -> Floats:
        truth, predictions = form.truth(table), form.predictions(table)
        by_fold = np.full((len(folds), resamples), np.nan)
        for row, part in enumerate(folds):
            weights = counts[:, patient[part]]
            drawn = weights.sum(axis=1) > 0
            by_fold[row, drawn] = function(truth[part], predictions[part], weights[drawn])
        return np.asarray(by_fold.mean(axis=0))

    means = np.stack([values(table) for table in ordered.values()])
    defined = ~np.isnan(means).any(axis=0)
    if not defined.any():
        return dict.fromkeys(tables, float("nan"))
    wins = np.bincount(means[:, defined].argmax(axis=0), minlength=len(means)) / defined.sum()
    return dict(zip(tables, wins.tolist(), strict=True))


def _write_run(search: Search, result: SearchResult, role: str, folder: Path, infos: Sequence[FeatureInfo]) -> Path:
    """A run folder with the predictions of the outer folds, for `asmil evaluate` and `asmil compare`.

    Outer folds may have chosen different methods; the settings are those of the most frequent one.
    """
    ((name, _),) = Counter(result.methods[role]).most_common(1)
    config = search.candidates[name].config(search.common, result.plan.share)
    config = with_settings(config, {"folds": result.outer.n_folds})
    names = outcomes_of(search.cohort, units_of(search.cohort.slides, config.unit), search.kind).names
    writer = RunWriter(folder)
    writer.begin(describe(config, search.cohort, names, list(infos)))
    result.outer.save(writer.splits)
    store_labels(folder, search.cohort, search.kind)
    write_predictions(writer.predictions, result.tested[role])
    return folder


def _calibration(evaluation: RunEvaluation) -> tuple[str, bool]:
    """How well the predicted numbers can be taken as they are, and whether that is poor."""
    metrics, kind = evaluation.metrics, evaluation.run.kind
    if isinstance(evaluation, Evaluation):
        error = evaluation.calibration.as_predicted.ece
        return f"expected calibration error {format_number(error)}", error > POOR_ECE
    if kind == "survival":
        brier, reference = metrics["integrated_brier"].value, metrics["reference_brier"].value
        without = f"(Kaplan-Meier, without features: {format_number(reference)})"
        return f"integrated Brier score {format_number(brier)} {without}", brier > reference
    _, truth, predictions = evaluation.by_slide
    if kind == "regression":
        slope = float(np.polyfit(predictions[:, 0], truth, 1)[0]) if np.ptp(predictions) > 0 else float("nan")
        return f"slope of truth on prediction {format_number(slope)} (ideal: 1)", not 0.7 <= slope <= 1.4
    errors = []
    for label in range(predictions.shape[1]):
        known = ~np.isnan(truth[:, label])
        both = np.stack([1 - predictions[known, label], predictions[known, label]], axis=1)
        errors.append(expected_calibration_error(truth[known, label].astype(np.int64), both))
    error = float(np.mean(errors))
    return f"expected calibration error {format_number(error)}, mean over labels", error > POOR_ECE


def _hints(findings: Findings, result: SearchResult, poorly_calibrated: bool) -> Iterator[str]:
    """What would help, the most important first."""
    patients = findings.expected.n_patients
    interval = findings.performance.interval
    if findings.is_chance:
        yield (
            "What the procedure chose is not shown to be better than chance: check the labels, and try features of "
            "another encoder before more methods."
        )
    share = result.plan.share
    if share < FEW_EPOCHS_SHARE or result.notes:
        yield (
            f"More time: methods were trained for {format_share(share)} of their usual epochs. Give more `--minutes`, "
            "`--workers` or a GPU."
        )
    sizes = _group_sizes(findings.expected)
    if sizes and min(sizes.values()) < FEWEST_IN_GROUP:
        rarest = min(sizes, key=lambda name: sizes[name])
        yield f"More patients, above all of '{rarest}', which has only {sizes[rarest]}."
    elif interval.is_defined and interval.high - interval.low > 0.05:
        width = interval.high - interval.low
        yield (
            f"More patients: with {4 * patients:,} instead of {patients:,} the interval of the {findings.title} would "
            f"be about {format_number(width / 2)} wide instead of {format_number(width)}."
        )
    if findings.is_unstable or findings.resampled.get(findings.chosen.name, 1.0) < SURE:
        yield (
            "The choice is not certain: another method may be as good. Prefer the simpler or the "
            "cheaper one if it matters to you."
        )
    if poorly_calibrated:
        yield "Calibrate the model on patients of your own before its predicted numbers are used as they are."


def _group_sizes(evaluation: RunEvaluation) -> dict[str, int]:
    """Patients of each class or label, or with an event."""
    form, rows = evaluation.run.format, evaluation.rows.drop_duplicates("slide")
    if form.kind == "survival":
        return {"with an event": int(rows["event"].sum())}
    present = form.memberships(form.truth(rows))
    return {name: rows["patient"][present[:, index]].nunique() for index, name in enumerate(form.names)}


def _the(candidate: Candidate) -> str:
    return f"the {candidate}" if str(candidate) == "linear probe" else str(candidate)


def signed_interval(difference: Estimate) -> str:
    """The interval of a difference, in words if there are too few patients for one."""
    return format_signed_interval(difference.interval) if difference.interval.is_defined else "too few to say"


def to_json(search: Search, result: SearchResult, findings: Findings) -> dict[str, Any]:
    """All results, ready for JSON."""
    plan = result.plan
    return {
        "answer": findings.attention_answer,
        "verdict": findings.verdict,
        "reference": None if findings.reference is None else findings.reference.name,
        "metric": findings.metric,
        "chosen": {
            "name": findings.chosen.name,
            "method": findings.chosen.method,
            "preset": findings.chosen.preset,
            "settings": dict(findings.chosen.settings),
            "epochs": findings.chosen.config(search.common, plan.share).training.epochs,
            "won_outer_folds": findings.won,
            "resampled": dict(findings.resampled),
        },
        "expected": findings.expected.to_dict(),
        "performance": findings.performance.to_dict("folds"),
        "is_chance": findings.is_chance,
        "is_unstable": findings.is_unstable,
        "calibration": findings.calibration,
        "attention_minus": {name: estimate.to_dict() for name, estimate in findings.differences.items()},
        "tested": {name: estimate.to_dict("folds") for name, estimate in findings.tested.items()},
        "methods_of_outer_folds": result.methods,
        "design": {**vars(plan.design)},
        "share_of_epochs": plan.share,
        "rungs": {
            **{f"fold-{fold}": history for fold, history in enumerate(result.choices)},
            "all": result.final,
        },
        "seconds": result.seconds,
        "left_out": plan.left_out,
        "notes": result.notes,
        "what_would_help": list(findings.hints),
    }
