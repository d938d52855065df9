"""Trainings that are watched: when each slide is first read, and an end in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import asmil.cohort.loader as loader
from asmil.training.gradients import StepGradients
from asmil.training.run import RunObserver
from asmil.training.side_by_side.step import StackedSteps


class ReadAfter(RunObserver):
    """An observer that knows how many epochs had ended when each slide was first read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epochs: dict[str, int] = {}
        self._ended = 0
        original = loader.read_bag

        def spy(source, id, mpp=None):
            self.epochs.setdefault(id, self._ended)
            return original(source, id, mpp)

        monkeypatch.setattr(loader, "read_bag", spy)

    def epoch(self, fold, seed, record):
        self._ended += 1


class Killed(BaseException):
    """The end of a process, as far as a training can see."""


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """A training within ends after so many steps, and must not get further."""
    original = StepGradients.of_one
    left = [steps]

    def mortal(self, *arguments):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepGradients, "of_one", mortal)
        with pytest.raises(Killed):
            yield


@contextmanager
def killed_in_the_second_epoch() -> Iterator[None]:
    """Trainings side by side within end when the second epoch begins."""
    original = StackedSteps.run_epoch
    epochs = []

    def mortal(self, due):
        epochs.append(due)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        original(self, due)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackedSteps, "run_epoch", mortal)
        with pytest.raises(KeyboardInterrupt):
            yield
