"""Tiny cohorts of every task on the disk, for the tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from asmil.cohort.features import Provenance, write_features

WIDTH = 24
SPLITS = ("train", "train", "val", "test")


def write_cohort(folder: Path, kind: str, split: bool = True, n_patients: int = 16, sites: int = 0) -> Path:
    """The manifest of patients with two slides each, whose features tell their outcomes."""
    draw = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for number in range(2 * n_patients):
        patient = number // 2
        grade = patient % 4
        n_tiles = 6 + number % 5
        features = draw.normal(size=(n_tiles, WIDTH)) + 0.5 * grade * (np.arange(WIDTH) < 4)
        coords = np.stack([np.arange(n_tiles) % 3, np.arange(n_tiles) // 3], axis=1) * 256
        name = f"s{number:02d}"
        write_features(folder / "features" / f"{name}.h5", features, coords, Provenance(encoder="drawn"))
        row = {"slide": name, "patient": f"p{patient:02d}", **_outcome(kind, patient, grade)}
        row |= {"split": SPLITS[patient * len(SPLITS) // n_patients]} if split else {}
        rows.append(row | ({"site": f"site-{patient * sites // n_patients}"} if sites else {}))
    pd.DataFrame(rows).to_csv(folder / "cohort.csv", index=False)
    return folder / "cohort.csv"


def _outcome(kind: str, patient: int, grade: int) -> dict[str, Any]:
    if kind == "survival":
        return {"time": 40.0 - 9 * grade + patient % 3, "event": int(patient % 3 > 0)}
    if kind == "regression":
        return {"label": round(2.5 * grade + 0.1 * patient, 3)}
    if kind == "multilabel":
        return {"label": ("none", "a", "b", "a;b")[grade]}
    return {"label": "ab"[grade // 2]}
