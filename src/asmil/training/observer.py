"""Who follows a run: progress, logs, tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asmil.cohort.splits import Splits
from asmil.training.run_folder import RunDescription


class RunObserver:
    """Follows a run; the default ignores everything."""

    def began(self, description: RunDescription, splits: Splits) -> None:
        """The cohort is read and split."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Work before the first training: this many of all slides are done."""

    def note(self, text: str) -> None:
        """A note on something that the user may not expect."""

    def already_trained(self, fold: int, seed: int) -> None:
        """The training of a fold and seed was done by an earlier call."""

    def training(self, fold: int, seed: int, epochs: int, epochs_done: int) -> None:
        """The training of a fold and seed begins, or is resumed after `epochs_done` of its epochs."""

    def epoch(self, fold: int, seed: int, record: Mapping[str, Any]) -> None:
        """An epoch has ended; its record, where attention was recorded with `effective_share` of the tiles."""

    def trained(self, fold: int, seed: int) -> None:
        """A training has ended, and its predictions are written."""
