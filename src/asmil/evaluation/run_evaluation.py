"""What the evaluations of all tasks have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from asmil.evaluation.run import Run

Role = Literal["test", "val"]


@dataclass(frozen=True, kw_only=True)
class RunEvaluation:
    """How good a run is on one part of its cohort: whose numbers they are, and how many stand behind them."""

    run: Run
    role: Role
    n_folds: int
    n_seeds: int
    n_trainings: int
    n_patients: int
    resamples: int
    bootstrap_seed: int
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.run.name

    @property
    def method(self) -> str:
        """Name of the trained method."""
        return str(self.run.setting("method") or "unknown")

    @property
    def preset(self) -> str:
        """Name of the training preset."""
        return str(self.run.setting("preset") or "none")

    def to_dict(self) -> dict[str, Any]:
        """Everything found, ready for JSON: undefined numbers are None."""
        return {
            "run": str(self.run.path),
            "name": self.name,
            "method": self.method,
            "preset": self.preset,
            "task": self.run.kind,
            "role": self.role,
            "trainings": self.n_trainings,
            "folds": self.n_folds,
            "seeds": self.n_seeds,
            "patients": self.n_patients,
            "bootstrap": {"unit": "patient", "resamples": self.resamples, "seed": self.bootstrap_seed, "level": 0.95},
            "selection": self.run.setting("training", "select"),
            "max_tiles": self.run.setting("data", "max_tiles"),
            "warnings": list(self.warnings),
        }
