"""Runs on the same slides, as `asmil train` leaves them, of a chosen quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

TWO = ("normal", "tumor")
THREE = ("benign", "atypical", "malignant")


def write_compared_run(
    path: Path,
    quality: float = 1.0,
    classes: tuple[str, ...] = TWO,
    *,
    seeds: int = 3,
    folds: int = 1,
    slides: int = 60,
    slides_a_patient: int = 1,
    repeated: bool = False,
    noise_seed: int = 0,
) -> pd.DataFrame:
    """Write config, splits and predictions; return the predictions.

    quality: how far the logit of the true class is raised above noise of sd 1, part of which all seeds share
    repeated: folds test random halves of the patients, so that they share slides, instead of dividing them
    Slides, patients, classes and folds do not depend on quality, seeds or noise_seed.
    """
    cohort = np.random.default_rng(5)
    n_patients = slides // slides_a_patient
    label = np.repeat(cohort.permutation(np.arange(n_patients) % len(classes)), slides_a_patient)
    patient = np.repeat(np.arange(n_patients), slides_a_patient)
    tested = [_tested(cohort, patient, n_patients, folds, fold, repeated) for fold in range(folds)]

    noise = np.random.default_rng([7, noise_seed])
    shared = noise.normal(size=(slides, len(classes)))
    rows: list[dict[str, Any]] = []
    for fold, chosen in enumerate(tested):
        for seed in range(seeds):
            logits = 0.7 * shared + 0.7 * noise.normal(size=shared.shape)
            logits[np.arange(slides), label] += quality
            odds = np.exp(logits)
            probabilities = odds / odds.sum(axis=1, keepdims=True)
            for slide in np.flatnonzero(chosen):
                row = {"slide": f"s{slide}", "patient": f"p{patient[slide]}", "fold": fold, "seed": seed}
                row |= {"role": "test", "target": classes[label[slide]]}
                row |= {f"prob_{name}": p for name, p in zip(classes, probabilities[slide], strict=True)}
                rows.append(row)
    task = {"kind": "classification", "classes": list(classes)}
    return write_tables(path, pd.DataFrame(rows), task, _splits(tested, patient))


def write_tables(
    path: Path, predictions: pd.DataFrame, task: dict[str, Any], splits: pd.DataFrame | None
) -> pd.DataFrame:
    """Write the files of a run that a comparison reads."""
    path.mkdir(parents=True)
    predictions.to_parquet(path / "predictions.parquet")
    (path / "config.yaml").write_text(yaml.safe_dump({"method": "abmil", "preset": "paper", "task": task}))
    if splits is not None:
        splits.to_csv(path / "splits.csv", index=False)
    return predictions


def _tested(
    rng: np.random.Generator, patient: np.ndarray, n_patients: int, folds: int, fold: int, repeated: bool
) -> np.ndarray:
    if folds == 1:
        return np.ones(len(patient), bool)
    if repeated:
        return np.isin(patient, rng.permutation(n_patients)[: n_patients // 2])
    return patient % folds == fold


def _splits(tested: list[np.ndarray], patient: np.ndarray) -> pd.DataFrame:
    rows = []
    for fold, chosen in enumerate(tested):
        rows += [
            {"slide": f"s{slide}", "patient": f"p{patient[slide]}", "fold": fold, "role": "test" if test else "train"}
            for slide, test in enumerate(chosen)
        ]
        rows += [{"slide": f"t{i}", "patient": f"q{i}", "fold": fold, "role": "train"} for i in range(20)]
    return pd.DataFrame(rows)
