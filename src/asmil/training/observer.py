"""Observers of a run: progress display, logs, tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asmil.cohort.splits import Splits
from asmil.training.run_folder import RunDescription


class RunObserver:
    """Observes a run; this default ignores all events."""

    def began(self, description: RunDescription, splits: Splits) -> None:
        """The cohort is read and split."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Progress of the work before the first training, in slides."""

    def note(self, text: str) -> None:
        """A note on something that the user may not expect."""

    def already_trained(self, fold: int, seed: int) -> None:
        """The training of a fold and seed was completed by an earlier call."""

    def training(self, fold: int, seed: int, epochs: int, epochs_done: int) -> None:
        """The training of a fold and seed starts, or resumes after `epochs_done` epochs."""

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        """An epoch has ended; record: its metrics, with `effective_share` of the tiles if attention was recorded."""

    def trained(self, fold: int, seed: int) -> None:
        """A training has ended, and its predictions are written."""
