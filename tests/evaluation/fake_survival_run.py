"""Fake survival runs from a known exponential model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

ENDS = np.array([6.0, 12.0, 18.0, 24.0, 36.0, 48.0, 72.0, 120.0])


def exponential_patients(n: int, seed: int = 0, strength: float = 1.0, censoring: float = 0.015) -> pd.DataFrame:
    """n patients: log_risk ~ strength * N(0, 1), exponential times (months), independent exponential censoring."""
    rng = np.random.default_rng(seed)
    log_risk = strength * rng.normal(size=n)
    hazard = 0.02 * np.exp(log_risk)
    dies = rng.exponential(1 / hazard)
    leaves = rng.exponential(1 / censoring, n) if censoring > 0 else np.full(n, np.inf)
    return pd.DataFrame(
        {
            "patient": [f"p{i:04d}" for i in range(n)],
            "time": np.minimum(dies, leaves),
            "event": (dies <= leaves).astype(int),
            "log_risk": log_risk,
            "hazard": hazard,
        }
    )


def write_survival_run(
    path: Path,
    n: int = 120,
    folds: int = 3,
    seeds: int = 2,
    *,
    noise: float = 0.3,
    curves: bool = True,
    role: str = "test",
    config: dict[str, Any] | None = None,
    patients: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Write a run whose risks are the true ones plus noise, on another scale in every training."""
    patients = exponential_patients(n) if patients is None else patients
    rng = np.random.default_rng(5)
    tables = []
    for fold in range(folds):
        for seed in range(seeds):
            part = patients.iloc[fold::folds][["patient", "time", "event"]]
            guessed = patients["log_risk"].to_numpy()[fold::folds] + noise * rng.normal(size=len(part))
            shift, scale = 10 * rng.normal(), 0.5 + rng.random()
            part = part.assign(slide=part["patient"], fold=fold, seed=seed, role=role, risk=shift + scale * guessed)
            if curves:
                values = np.exp(-0.02 * np.outer(np.exp(guessed), ENDS))
                part = part.assign(survival_times=[ENDS] * len(part), survival=list(values))
            tables.append(part)
            folder = path / f"fold-{fold}" / f"seed-{seed}"
            folder.mkdir(parents=True)
            lines = [
                {"epoch": epoch, "train": {"loss": 2 / epoch, "nll": 2 / epoch}, "val": None} for epoch in (1, 2, 3)
            ]
            (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    table = pd.concat(tables, ignore_index=True)
    table.to_parquet(path / "predictions.parquet")
    settings = {
        "method": "asmil",
        "preset": "paper",
        "task": {"kind": "survival"},
        "data": {"max_tiles": None},
        "training": {"select": "last"},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(settings | (config or {})))
    return table
