"""What the public functions take, and the warnings that several of them give."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from asmil.errors import AsmilWarning

if TYPE_CHECKING:
    from asmil.engine.jobs import Engine

PathLike = Path | str


class OpenedRun(Protocol):
    """A run that is opened already: a `TrainedRun`."""

    @property
    def path(self) -> Path:
        """The run folder."""
        ...


RunLike = OpenedRun | PathLike
FEW_SLIDES = 2
"""Up to so many slides are computed in this process: starting others would take longer."""


@overload
def as_path(path: PathLike) -> Path: ...


@overload
def as_path(path: PathLike | None) -> Path | None: ...


def as_path(path: PathLike | None) -> Path | None:
    """A path as `Path`; None stays None."""
    return None if path is None else Path(path)


def run_path(run: RunLike) -> Path:
    """The folder of a run."""
    return Path(run) if isinstance(run, Path | str) else run.path


def run_paths(runs: RunLike | Sequence[RunLike]) -> list[Path]:
    """The folders of one or several runs."""
    return [run_path(run) for run in (runs if isinstance(runs, list | tuple) else [runs])]  # type: ignore[arg-type]


def names(words: str | Iterable[str]) -> tuple[str, ...]:
    """One or several names as a tuple."""
    return (words,) if isinstance(words, str) else tuple(words)


def tree(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings by their dotted names, e.g. {"training.epochs": 30}, as sections."""
    from asmil.settings.config import assign

    return assign({}, settings or {})


def slide_engine(
    engine: str, address: str | None, workers: int | None, device: str, item_timeout: float | None, n_slides: int
) -> Engine:
    """The engine for functions that work on stored features, slide by slide."""
    from asmil.engine.inline import InlineEngine
    from asmil.extraction.machine import ExtractionMachine

    if engine == "local" and workers is None and item_timeout is None and n_slides <= FEW_SLIDES and address is None:
        return InlineEngine(1, device)
    return ExtractionMachine(engine, address, workers, device, item_timeout=item_timeout).prepare(n_slides)[0]


def warn(*messages: str) -> None:
    """Give each message as an `AsmilWarning` at the line of the user's code; the command prints them."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "asmil":
        level, frame = level + 1, frame.f_back
    for message in messages:
        warnings.warn(message, AsmilWarning, stacklevel=level)


def warn_of_changed_labels(runs: Iterable[Path]) -> None:
    """Warn of each run whose manifest has other labels than it was trained with."""
    from asmil.runs.run import Run
    from asmil.runs.stored_labels import label_changes

    for run in runs:
        changes = label_changes(Run(run))
        if changes is not None:
            warn(changes.sentence(f"the models of {run} were trained with the old ones"))
