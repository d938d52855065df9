"""Trainings whose steps run at the same time on a GPU, and the lengths that their bags are padded to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asmil.models.base import MILModel
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer

MOST_TILES_ON_GPU = 1024
"""Mean tiles of a bag up to which a GPU has room for the trainings of several folds."""
SMALLEST_STEP = 8
PER_OCTAVE = 8
PASSES = 64
"""A step keeps at most about this many arrays of tiles x its widest layer, in float32."""
COPIES = 10
"""Arrays of the size of all weights: weights, gradients, moments, an EMA, and copies for the trainings of a step."""
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


def padded_length(tiles: int, fewest: int) -> int:
    """The padded length of a bag of this many tiles: at most an eighth more; bags below `fewest` are not padded.

    There are only a few such lengths, so that few steps are recorded.
    """
    if tiles < fewest:
        return tiles
    step = max(SMALLEST_STEP, (1 << (tiles.bit_length() - 1)) // PER_OCTAVE)
    return -(-tiles // step) * step


def step_bytes(model: MILModel, tiles: int) -> int:
    """The memory of a training and its step on this many tiles, roughly."""
    parameters = list(model.parameters())
    widest = max(max(parameter.shape, default=1) for parameter in parameters)
    return 4 * (PASSES * tiles * widest + COPIES * sum(parameter.numel() for parameter in parameters))
