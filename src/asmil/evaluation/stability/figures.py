"""What the stability figures share: which slide, training and epochs they show, names, and logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from asmil.errors import AsmilError, did_you_mean
from asmil.evaluation.stability.analysis import RunStability, TrainingStability
from asmil.reporting.formats import format_significant

LATER_EPOCHS = 4
"""How many epochs after the first are shown by default."""
NARROW_DECADES = 2.5
"""A logarithmic axis that spans less also gets ticks at 2 and 5."""


def legend_names(stabilities: Sequence[RunStability]) -> list[str]:
    """The name of each run in a figure: its label, with the name of the folder if labels repeat."""
    labels = [stability.label for stability in stabilities]
    return [
        label if labels.count(label) == 1 else f"{stability.name}: {label}"
        for stability, label in zip(stabilities, labels, strict=True)
    ]


def choose_slide(stabilities: Sequence[RunStability], wanted: str | None = None) -> str:
    """The wanted slide, or the slide of the last class that most runs recorded."""
    counts: dict[str, int] = {}
    for stability in stabilities:
        for slide in _recorded_slides(stability):
            counts[slide] = counts.get(slide, 0) + 1
    if wanted is not None:
        if wanted not in counts:
            raise AsmilError(f"--slide {wanted}: the slide was not recorded; {did_you_mean(wanted, counts)}")
        return wanted
    return max(_of_last_class(stabilities), key=lambda slide: counts[slide])


def training_of(stability: RunStability, slide: str) -> TrainingStability | None:
    """The first training of a run that recorded the slide."""
    return next((training for training in stability.trainings if slide in training.record.slides), None)


def default_epochs(trainings: Sequence[TrainingStability]) -> list[float]:
    """Epoch 0, epoch 1, and a few more, evenly spaced up to the end of the longest training."""
    end = max(float(training.record.epochs[-1]) for training in trainings)
    later = np.linspace(min(1.0, end), end, LATER_EPOCHS + 1)
    rounded = np.round(later) if end > LATER_EPOCHS else later
    return list(dict.fromkeys([0.0, *map(float, rounded)]))


def nearest_recording(epochs: npt.NDArray[np.float64], wanted: float) -> int | None:
    """The recording nearest to an epoch; None if there is none within reach."""
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


def make_logarithmic(axes: Axes, which: str) -> None:
    """Make the x or y axis logarithmic; call it after drawing."""
    axes.set(**{f"{which}scale": "log"})
    axis: Axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    narrow = math.log10(high / low) < NARROW_DECADES
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=12 if narrow else 7))
    axis.set_minor_locator(NullLocator())
    if narrow:
        axis.set_major_formatter(FuncFormatter(lambda value, _: format_significant(value)))
