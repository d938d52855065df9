"""Whoever is told how a run proceeds: progress bars, logs, tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asmil.cohort.splits import Splits
from asmil.training.run_folder import RunDescription


class RunObserver:
    """Receives the progress of a run; the default ignores it."""

    def began(self, description: RunDescription, splits: Splits) -> None:
        """The cohort is read and split."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Work before the first training: `done` of `total` slides are done."""

    def note(self, text: str) -> None:
        """A note on something that the user may not expect."""

    def already_trained(self, fold: int, seed: int) -> None:
        """The training of a fold and seed was done by an earlier call."""

    def training(self, fold: int, seed: int, epochs: int) -> None:
        """The training of a fold and seed begins, or resumes; `epochs` in all."""

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        """An epoch has ended."""
