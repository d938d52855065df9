"""Evaluating a run: metrics with the spread over trainings and an interval by patient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.cohort.units import UnitKind
from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.bootstrap import (
    draw_patients,
    has_two_classes,
    number_patients,
    percentile_interval,
)
from asmil.evaluation.chosen_on_validation import (
    CalibrationNumbers,
    CalibrationSummary,
    OperatingSummary,
    calibration_numbers,
    called_rows,
    choose_operating_point,
    fit_temperatures,
    scaled_rows,
)
from asmil.evaluation.patients import join_patients
from asmil.evaluation.run import Run, read_run
from asmil.evaluation.run_evaluation import Role
from asmil.evaluation.summary import CLASS_METRICS, METRICS, ClassSummary, Evaluation, MetricSummary, Replicate
from asmil.tasks import weighted
from asmil.tasks.metrics import confusion_matrix, predicted_classes

Floats = npt.NDArray[np.float64]
CELLS_AT_ONCE = 2_000_000
OPERATING_METRICS = (
    ("sensitivity", "recall", 1),
    ("specificity", "specificity", 1),
    ("precision", "precision", 1),
    ("macro_f1", "macro_f1", None),
    ("accuracy", "accuracy", None),
)
"""What is told of the operating point: its name there, the metric, and the class that it is of."""


def evaluate_run(
    run: Path | str,
    role: Role = "test",
    resamples: int = 2000,
    seed: int = 0,
    unit: UnitKind = "slide",
    threshold_rule: str = "youden",
) -> Evaluation:
    """Evaluate the predictions that a run made for one part of its cohort.

    Every metric is taken over all slides of the part, the folds of a seed joined, and averaged over seeds.
    Where folds share slides (repeated splits), each training is judged on its own and all are averaged.
    The interval is the 2.5 and 97.5 percentile of that average over `resamples` draws of patients.

    unit: `patient` averages the probabilities of a patient's slides first
    threshold_rule: how the operating threshold of two classes is chosen on the validation part (`choose_threshold`)
    """
    if role not in ("test", "val"):
        raise AsmilError(f"role {role!r} is unknown: {did_you_mean(role, ('test', 'val'))}")
    if resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")
    opened = read_run(run)
    rows = _rows_of(opened, role, unit)
    trainings = [_replicate(opened, part) for _, part in rows.groupby(["fold", "seed"], sort=True)]
    folds_joined = not rows.duplicated(["slide", "seed"]).any()
    replicates = _replicates(opened, rows, folds_joined)
    found = _found(replicates)
    samples, kept = _bootstrap(replicates, rows, len(opened.classes), resamples, seed)
    operating = _operating(opened, rows, role, unit, threshold_rule, folds_joined, resamples, seed)
    slide_targets = rows.drop_duplicates("slide")["target"].value_counts()
    return Evaluation(
        run=opened,
        role=role,
        metrics={
            name: MetricSummary(
                value=float(found[name][0]),
                interval=percentile_interval(samples[name][kept]),
                per_seed=_value_per_seed(name, replicates),
                per_training={(part.fold or 0, part.seed): _value(name, part) for part in trainings},
            )
            for name in METRICS
        },
        classes=tuple(
            ClassSummary(
                name=class_name,
                support=int(slide_targets.get(class_name, 0)),
                metrics={
                    name: (float(found[name][0, label]), percentile_interval(samples[name][kept, label]))
                    for name in CLASS_METRICS
                },
            )
            for label, class_name in enumerate(opened.classes)
        ),
        calibration=_calibration(opened, rows, role, unit, folds_joined),
        operating=operating if isinstance(operating, OperatingSummary) else None,
        unit=unit,
        confusion=np.sum([_confusion(part) for part in trainings], axis=0),
        replicates=tuple(replicates),
        folds_joined=folds_joined,
        n_folds=rows["fold"].nunique(),
        n_seeds=rows["seed"].nunique(),
        n_trainings=len(trainings),
        n_slides=rows["slide"].nunique(),
        n_patients=rows["patient"].nunique(),
        resamples=resamples,
        skipped_resamples=int((~kept).sum()),
        bootstrap_seed=seed,
        warnings=(
            *_warnings(opened, replicates, folds_joined, kept),
            *([operating] if isinstance(operating, str) else []),
        ),
    )


def _operating(
    run: Run,
    rows: pd.DataFrame,
    role: Role,
    unit: UnitKind,
    rule: str,
    folds_joined: bool,
    resamples: int,
    seed: int,
) -> OperatingSummary | str | None:
    """The part at the thresholds chosen on validation slides, or why there are none; None for these slides themselves.

    A called class is a probability of 1, so that the metrics and their intervals are found as for probabilities.
    """
    if role == "val":
        return None
    point = choose_operating_point(run, _part_of(run, "val", unit), _trainings_of(rows), rule)
    if isinstance(point, str):
        return point if len(run.classes) == 2 else None
    replicates = _replicates(run, called_rows(run, rows, point), folds_joined)
    found = _found(replicates)
    samples, kept = _bootstrap(replicates, rows, len(run.classes), resamples, seed)
    metrics = {}
    for title, name, label in OPERATING_METRICS:
        values = found[name][0] if label is None else found[name][0, label]
        drawn = samples[name][kept] if label is None else samples[name][kept, label]
        metrics[title] = (float(values), percentile_interval(drawn))
    return OperatingSummary(point, metrics)


def _calibration(run: Run, rows: pd.DataFrame, role: Role, unit: UnitKind, folds_joined: bool) -> CalibrationSummary:
    def numbers(table: pd.DataFrame) -> CalibrationNumbers:
        parts = _replicates(run, table, folds_joined)
        return calibration_numbers([(part.target, part.probabilities) for part in parts])

    fitted: dict[tuple[int, int], float] = {}
    if role == "test":
        fitted = fit_temperatures(run, _part_of(run, "val", unit), _trainings_of(rows))
    return CalibrationSummary(numbers(rows), numbers(scaled_rows(run, rows, fitted)) if fitted else None, fitted)


def _trainings_of(rows: pd.DataFrame) -> list[tuple[int, int]]:
    pairs = rows[["fold", "seed"]].drop_duplicates().sort_values(["fold", "seed"])
    return [(int(fold), int(seed)) for fold, seed in pairs.itertuples(index=False)]


def _replicates(run: Run, rows: pd.DataFrame, folds_joined: bool) -> list[Replicate]:
    """What is judged together: the folds of a seed, or where they share slides every training."""
    keys = ["seed"] if folds_joined else ["fold", "seed"]
    return [_replicate(run, part) for _, part in rows.groupby(keys, sort=True)]


def _found(replicates: list[Replicate]) -> dict[str, Floats]:
    return _average([_metrics(part, np.ones((1, len(part.target)))) for part in replicates])


def _part_of(run: Run, role: Role, unit: UnitKind) -> pd.DataFrame:
    rows = run.predictions[run.predictions["role"] == role]
    return join_patients(run, rows) if unit == "patient" else rows


def _rows_of(run: Run, role: Role, unit: UnitKind) -> pd.DataFrame:
    rows = _part_of(run, role, unit)
    if rows.empty:
        others = sorted(set(run.predictions["role"].astype(str)))
        hint = "; `--role val` evaluates the validation part" if role == "test" and "val" in others else ""
        raise AsmilError(
            f"{run.path}: there are no {role} predictions, only {', '.join(others) or 'none at all'}{hint}"
        )
    return rows


def _replicate(run: Run, rows: pd.DataFrame) -> Replicate:
    folds = rows["fold"].unique()
    return Replicate(
        seed=int(rows["seed"].iloc[0]),
        fold=int(folds[0]) if len(folds) == 1 else None,
        slides=tuple(rows["slide"].astype(str)),
        target=run.targets(rows),
        probabilities=run.probabilities(rows),
    )


def _metrics(part: Replicate, weights: Floats) -> dict[str, Floats]:
    """Every metric under R sets of slide weights: R values, or R x K for those of a class."""
    n_classes = part.probabilities.shape[1]
    predicted = predicted_classes(part.probabilities)
    confusion = weighted.weighted_confusion(part.target, predicted, n_classes, weights)
    auc = weighted.weighted_auc(part.target, part.probabilities, weights)
    f1 = weighted.f1_scores(confusion)
    return {
        "macro_f1": f1.mean(axis=1),
        "macro_auc": weighted.mean_defined(auc),
        "balanced_accuracy": weighted.balanced_accuracies(confusion),
        "accuracy": weighted.accuracies(confusion),
        "precision": weighted.precisions(confusion),
        "recall": weighted.recalls(confusion),
        "specificity": weighted.specificities(confusion),
        "f1": f1,
        "auc": auc,
        "ap": weighted.weighted_average_precision(part.target, part.probabilities, weights),
    }


def _average(parts: Iterable[Mapping[str, Floats]]) -> dict[str, Floats]:
    listed = list(parts)
    return {name: weighted.mean_defined(np.stack([part[name] for part in listed], axis=-1)) for name in listed[0]}


def _bootstrap(
    replicates: list[Replicate], rows: pd.DataFrame, n_classes: int, resamples: int, seed: int
) -> tuple[dict[str, Floats], npt.NDArray[np.bool_]]:
    """Metrics of every resample, averaged over the replicates, and which resamples count.

    All replicates see the same resamples; those in which a replicate holds a single class do not count.
    """
    patient_of = dict(zip(rows["slide"].astype(str), number_patients(rows["patient"].tolist()), strict=True))
    patient_index = [np.array([patient_of[slide] for slide in part.slides]) for part in replicates]
    counts = draw_patients(rows["patient"].nunique(), resamples, seed)
    chunks, kept = [], []
    rows_at_once = max(1, CELLS_AT_ONCE // max(len(part.target) for part in replicates))
    for start in range(0, resamples, rows_at_once):
        chunk = counts[start : start + rows_at_once]
        weights = [chunk[:, index].astype(np.float64) for index in patient_index]
        pairs = list(zip(replicates, weights, strict=True))
        chunks.append(_average(_metrics(part, weight) for part, weight in pairs))
        enough = [has_two_classes(part.target, n_classes, weight) for part, weight in pairs]
        kept.append(np.all(enough, axis=0))
    samples = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return samples, np.concatenate(kept)


def _value(name: str, part: Replicate) -> float:
    return float(_metrics(part, np.ones((1, len(part.target))))[name][0])


def _value_per_seed(name: str, replicates: list[Replicate]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for part in replicates:
        values.setdefault(part.seed, []).append(_value(name, part))
    return {seed: float(weighted.mean_defined(np.array(found))) for seed, found in values.items()}


def _confusion(part: Replicate) -> npt.NDArray[np.int64]:
    return confusion_matrix(part.target, predicted_classes(part.probabilities), part.probabilities.shape[1])


def _warnings(run: Run, replicates: list[Replicate], folds_joined: bool, kept: npt.NDArray[np.bool_]) -> Iterable[str]:
    present = set(np.concatenate([part.target for part in replicates]).tolist())
    absent = [name for label, name in enumerate(run.classes) if label not in present]
    total = len(run.classes)
    if len(present) == 1:
        yield "All slides are of one class: the AUC is undefined and there is no interval."
    elif absent:
        yield (
            f"No slide is of class {', '.join(absent)}: macro-AUC is the mean of {total - len(absent)} of "
            f"{total} classes, and macro-F1 counts the absent ones as 0."
        )
    if not folds_joined:
        yield "The folds share slides, so every training was judged on its own and the values were averaged."
    skipped = int((~kept).sum())
    if skipped and len(present) > 1:
        yield f"{skipped} of {len(kept)} resamples held a single class and were left out of the intervals."
