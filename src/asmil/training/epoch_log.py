"""The log of a training while it is written, and the requested experiment trackers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asmil.files import write_text
from asmil.runs.epochs import LOG, read_epochs
from asmil.training.trackers import TrackerThread, metrics_of


class EpochLog:
    """`metrics.jsonl` of one training; when training resumes at an epoch, later lines are dropped.

    track: names of trackers that also receive the metrics and the settings of the training
    """

    def __init__(
        self, folder: Path, epochs_done: int, track: Sequence[str] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        self.path = folder / LOG
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


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
