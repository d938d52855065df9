"""The log of a training: one JSON line per epoch, and the requested experiment trackers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, FiniteFloat, PositiveInt

from asmil.documents import parse_json, validated
from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.training.trackers import TrackerThread, metrics_of


class EpochLog:
    """`metrics.jsonl` of one training; when training resumes at an epoch, later lines are dropped.

    track: names of trackers that also receive the metrics and the settings of the training
    """

    def __init__(
        self, folder: Path, epochs_done: int, track: Sequence[str] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        self.path = folder / "metrics.jsonl"
        kept = [record for record in read_epochs(self.path) if record["epoch"] <= epochs_done]
        write_text(self.path, "".join(_line(record) for record in kept))
        self._trackers = [TrackerThread(name, folder, epochs_done, settings or {}) for name in track]

    def add(self, record: Mapping[str, Any]) -> None:
        """Append the record of an epoch; it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
        for tracker in self._trackers:
            tracker.log(record["epoch"], metrics_of(record))

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self._trackers:
            tracker.close()


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


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
