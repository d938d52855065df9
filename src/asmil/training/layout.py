"""Where the files of a run lie; light, so that reading a finished run does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from asmil.config import read_yaml
from asmil.errors import AsmilError

TASK_FILE = "task.json"
"""In the folder of a training: what its task learned of the training part (time bins, scales)."""
CHOICE_FILE = "choice.json"
"""In the folder of a fold: the settings that nested cross-validation chose, and all that it tried."""


class RunLayout:
    """The paths of a run folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.splits = self.path / "splits.csv"
        self.predictions = self.path / "predictions.parquet"

    def fold(self, fold: int) -> Path:
        """The folder of one fold."""
        return self.path / f"fold-{fold}"

    def training(self, fold: int, seed: int) -> Path:
        """The folder of one training."""
        return self.fold(fold) / f"seed-{seed}"

    def trainings(self) -> Iterator[tuple[int, int, Path]]:
        """Fold, seed and folder of every training begun, in order."""
        found = [
            (int(folder.parent.name.removeprefix("fold-")), int(folder.name.removeprefix("seed-")), folder)
            for folder in self.path.glob("fold-*/seed-*")
        ]
        yield from sorted(found)

    def read_values(self) -> dict[str, Any]:
        """What `config.yaml` says, as plain values."""
        try:
            values = read_yaml(self.config.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise AsmilError(
                f"{self.path} is not a run folder (no config.yaml); give the --out folder of `asmil train`"
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError):
            values = None
        if not isinstance(values, dict):
            raise AsmilError(f"{self.config} cannot be read as settings; restore it or train again")
        return values
