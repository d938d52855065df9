"""The operating point of a run: the threshold of the positive class, chosen on validation slides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat

from asmil.files import write_json
from asmil.settings.documents import read_json

FILE = "operating_point.json"


@dataclass(frozen=True)
class OperatingPoint:
    """Thresholds on the probability of the positive class, one per training (fold, seed)."""

    rule: str
    positive: str
    thresholds: Mapping[tuple[int, int], float]

    @property
    def threshold(self) -> float:
        """The mean threshold of all models, for their mean prediction."""
        return fmean(self.thresholds.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to the file."""
        return {
            "rule": self.rule,
            "chosen_on": "validation slides",
            "positive": self.positive,
            "threshold": self.threshold,
            "trainings": [
                {"fold": fold, "seed": seed, "threshold": value} for (fold, seed), value in self.thresholds.items()
            ],
        }

    def save(self, run: Path) -> None:
        write_json(run / FILE, self.to_dict())


def read_operating_point(run: Path) -> OperatingPoint | None:
    """The operating point of a run; None if none was chosen."""
    path = run / FILE
    if not path.exists():
        return None
    stored = read_json(path, _File, "remove it and evaluate the run again")
    thresholds = {(training.fold, training.seed): training.threshold for training in stored.trainings}
    return OperatingPoint(stored.rule, stored.positive, thresholds)


class _Threshold(BaseModel):
    fold: int
    seed: int
    threshold: FiniteFloat


class _File(BaseModel):
    rule: str
    positive: str
    trainings: Annotated[list[_Threshold], Field(min_length=1)]
