"""What the pictures show when there is more than fits: the slide, the training that saw it, the moments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.stability.analysis import RunStability, TrainingStability

LATER_MOMENTS = 4
"""Moments between the first epoch and the end that are shown by default."""


def legend_names(stabilities: Sequence[RunStability]) -> list[str]:
    """What each run is called in a picture: its label, with the folder's name where labels repeat."""
    labels = [stability.label for stability in stabilities]
    return [
        label if labels.count(label) == 1 else f"{stability.name}: {label}"
        for stability, label in zip(stabilities, labels, strict=True)
    ]


def choose_slide(stabilities: Sequence[RunStability], wanted: str | None = None) -> str:
    """The wanted slide, or the first recorded slide of the last class, of those that most runs recorded."""
    counts: dict[str, int] = {}
    for stability in stabilities:
        for slide in _recorded_slides(stability):
            counts[slide] = counts.get(slide, 0) + 1
    if wanted is not None:
        if wanted not in counts:
            raise AsmilError(f"--slide {wanted}: it was not recorded; {did_you_mean(wanted, counts)}")
        return wanted
    return max(_of_last_class(stabilities), key=lambda slide: counts[slide])


def training_of(stability: RunStability, slide: str) -> TrainingStability | None:
    """The first training of a run that recorded the slide."""
    return next((training for training in stability.trainings if slide in training.record.slides), None)


def default_epochs(trainings: Sequence[TrainingStability]) -> list[float]:
    """The start, the end of the first epoch, and a few moments spread evenly to the end of the longest training."""
    end = max(float(training.record.epochs[-1]) for training in trainings)
    later = np.linspace(min(1.0, end), end, LATER_MOMENTS + 1)
    rounded = np.round(later) if end > LATER_MOMENTS else later
    return list(dict.fromkeys([0.0, *map(float, rounded)]))


def nearest_recording(epochs: npt.NDArray[np.float64], wanted: float) -> int | None:
    """The recording nearest to an epoch; None where the record has a hole there or ended before."""
    nearest = int(np.abs(epochs - wanted).argmin())
    spacing = float(np.median(np.diff(epochs))) if len(epochs) > 1 else 1.0
    reach = max(1.0, spacing) / 2
    return nearest if abs(epochs[nearest] - wanted) <= reach else None


def _recorded_slides(stability: RunStability) -> list[str]:
    return list(dict.fromkeys(slide for training in stability.trainings for slide in training.record.slides))


def _of_last_class(stabilities: Sequence[RunStability]) -> list[str]:
    last = max(int(training.record.targets.max()) for stability in stabilities for training in stability.trainings)
    slides = [
        slide
        for stability in stabilities
        for training in stability.trainings
        for slide, target in zip(training.record.slides, training.record.targets, strict=True)
        if target == last
    ]
    return list(dict.fromkeys(slides))
