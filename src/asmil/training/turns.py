"""Trainings whose steps run at the same time on a GPU: started in turn, each in a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer

MOST_TILES_ON_GPU = 1024
"""Mean tiles of a bag up to which a GPU has room for the trainings of several folds."""
_ENDED = object()


@dataclass(frozen=True)
class TrainingPart:
    """Trainings that share their bags and settings and differ in their seeds: the seeds of a fold."""

    trainers: Sequence[Trainer]
    train: LabeledBags
    val: LabeledBags | None

    @property
    def sources(self) -> list[BagSource]:
        """The bags of training and validation."""
        return [part.bags for part in (self.train, self.val) if part is not None]


def take_turns(epochs: Sequence[Iterator[None]]) -> None:
    """Take the steps of several trainings in turn, until all are finished."""
    while epochs:
        epochs = [steps for steps in epochs if next(steps, _ENDED) is not _ENDED]
