"""The epochs of a training from its log `metrics.jsonl`, which has one JSON line per epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, FiniteFloat, PositiveInt

from asmil.errors import AsmilError
from asmil.runs.layout import RunLayout
from asmil.runs.notes import read_kept_epoch
from asmil.settings.documents import parse_json, validated

LOG = "metrics.jsonl"


@dataclass(frozen=True)
class Training:
    """The epochs of one training: one row per epoch, in columns like `train.loss`; and the epoch that was kept."""

    fold: int
    seed: int
    epochs: pd.DataFrame
    selected_epoch: int | None


def read_training(folder: Path, fold: int, seed: int) -> Training | None:
    """The epochs of the training in a folder; None if there is no log, AsmilError if it is damaged."""
    log = folder / LOG
    if not log.is_file():
        return None
    epochs = pd.json_normalize(read_epochs(log))
    if epochs.empty:
        raise AsmilError(f"{log}: no epoch is complete; run the same `asmil train` command again to finish it")
    return Training(fold, seed, epochs, read_kept_epoch(folder))


def read_epochs(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`; an incomplete last line, left by a killed process, is ignored."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        where = f"{path}, line {number}"
        record = parse_json(line, dict[str, Any], where, _REMEDY)
        validated(record, _Epoch, where, _REMEDY)
        records.append(record)
        if number > 1 and records[-1]["epoch"] <= records[-2]["epoch"]:
            raise AsmilError(f"{where}: epoch {records[-1]['epoch']} follows epoch {records[-2]['epoch']}; {_REMEDY}")
    return records


def training_seconds(layout: RunLayout) -> float | None:
    """The seconds of all epochs of a run, over its folds and seeds; None if they were not recorded."""
    logs = [read_epochs(training / LOG) for _, _, training in layout.trainings()]
    seconds = [float(epoch["seconds"]) for epochs in logs for epoch in epochs if "seconds" in epoch]
    return sum(seconds) if seconds else None


_REMEDY = "restore the file, or train again into another folder"


class _Epoch(BaseModel):
    """The required fields of a line."""

    epoch: PositiveInt
    stage: str = ""
    lr: FiniteFloat = 0.0
    train: dict[str, FiniteFloat | None] = {}
    val: dict[str, FiniteFloat | None] | None = None
    zeta: FiniteFloat = 0.0
    seconds: FiniteFloat = 0.0


def without_nan(values: Mapping[str, float]) -> dict[str, float | None]:
    """The same numbers with None instead of NaN, which JSON does not support."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
