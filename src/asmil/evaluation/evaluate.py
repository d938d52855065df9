"""Evaluating a run: metrics with the spread over trainings and an interval by patient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.bootstrap import (
    draw_patients,
    has_two_classes,
    number_patients,
    percentile_interval,
)
from asmil.evaluation.run import Run, read_run
from asmil.evaluation.summary import (
    CLASS_METRICS,
    METRICS,
    ClassSummary,
    Evaluation,
    MetricSummary,
    Replicate,
    Role,
)
from asmil.tasks import weighted
from asmil.tasks.metrics import confusion_matrix, predicted_classes

Floats = npt.NDArray[np.float64]
CELLS_AT_ONCE = 2_000_000


def evaluate_run(run: Path | str, role: Role = "test", resamples: int = 2000, seed: int = 0) -> Evaluation:
    """Evaluate the predictions that a run made for one part of its cohort.

    Every metric is taken over all slides of the part, the folds of a seed joined, and averaged over seeds.
    Where folds share slides (repeated splits), each training is judged on its own and all are averaged.
    The interval is the 2.5 and 97.5 percentile of that average over `resamples` draws of patients.
    """
    if role not in ("test", "val"):
        raise AsmilError(f"role {role!r} is unknown: {did_you_mean(role, ('test', 'val'))}")
    if resamples < 1:
        raise AsmilError(f"{resamples} resamples are too few; give at least 1, better 2000")
    opened = read_run(run)
    rows = _rows_of(opened, role)
    trainings = [_replicate(opened, part) for _, part in rows.groupby(["fold", "seed"], sort=True)]
    folds_joined = not rows.duplicated(["slide", "seed"]).any()
    replicates = trainings
    if folds_joined:
        replicates = [_replicate(opened, part) for _, part in rows.groupby("seed", sort=True)]

    found = _average([_metrics(part, np.ones((1, len(part.target)))) for part in replicates])
    samples, kept = _bootstrap(replicates, rows, len(opened.classes), resamples, seed)
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
        warnings=tuple(_warnings(opened, replicates, folds_joined, kept)),
    )


def _rows_of(run: Run, role: Role) -> pd.DataFrame:
    rows = run.predictions[run.predictions["role"] == role]
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
