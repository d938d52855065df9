"""Paths of the files of a run; reading a finished run does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asmil.errors import AsmilError
from asmil.settings.documents import read_yaml

TASK_FILE = "task.json"
"""In the folder of a training: what its task learned from the training set (time bins, scales)."""
CHOICE_FILE = "choice.json"
"""In the folder of a fold: the settings chosen by nested cross-validation, and all candidates."""
PREDICTIONS_FILE = "predictions.parquet"
"""In the folder of a training, and for all trainings in the run folder."""
LOCK_FILE = ".lock"
"""In the run folder: locked by the process that trains into it, until it ends."""
_TRAINING = re.compile(r"fold-(\d{1,9})/seed-(\d{1,18})", re.ASCII)


def is_finished(training: Path) -> bool:
    """Whether the training in a folder has ended and its predictions are written."""
    return (training / PREDICTIONS_FILE).exists()


class RunLayout:
    """The paths of a run folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.splits = self.path / "splits.csv"
        self.predictions = self.path / PREDICTIONS_FILE

    def fold(self, fold: int) -> Path:
        return self.path / f"fold-{fold}"

    def training(self, fold: int, seed: int) -> Path:
        return self.fold(fold) / f"seed-{seed}"

    def trainings(self) -> Iterator[tuple[int, int, Path]]:
        """Fold, seed and folder of every training that was started, in order."""
        trainings = []
        for folder in self.path.glob("fold-*/seed-*"):
            numbers = _TRAINING.fullmatch(f"{folder.parent.name}/{folder.name}")
            if numbers and folder.is_dir():
                trainings.append((int(numbers[1]), int(numbers[2]), folder))
        yield from sorted(trainings)

    def read_values(self) -> dict[str, Any]:
        """The content of `config.yaml`, as plain values."""
        if not self.config.is_file():
            what = "is a file, not a run" if self.path.is_file() else "is not a run folder (no config.yaml)"
            raise AsmilError(
                f"{self.path} {what}; give the --out folder of `asmil train`, or a bundle of `asmil export`"
            )
        return read_yaml(self.config, "restore it or train again")
