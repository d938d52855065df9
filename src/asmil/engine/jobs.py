"""Jobs, workers and outcomes: the interface of every engine."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from asmil.errors import GPU_FULL, AsmilError, is_gpu_full

_LONGEST_MESSAGE = 400

Worker = Callable[[Any], Any]
"""From a job to its result; several threads may call it at the same time."""

Report = Callable[[Any], None]
"""Receives what a worker reports while it works, for a progress bar: any value, a few times per second at most."""
_here = threading.local()


def ignore(value: Any) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class Place:
    """Where a worker is: its number among the workers, and its device ("cpu", "cuda:1").

    sharers: how many workers use this device
    report: receives the progress of the worker; from a Ray cluster nothing arrives
    """

    index: int
    device: str
    report: Report = ignore
    sharers: int = 1


MakeWorker = Callable[[Place], Worker]
"""Called once in each worker process; it loads what all jobs share."""


def same_anywhere(worker: Worker, place: Place) -> Worker:
    """`partial(same_anywhere, function)` makes workers that load nothing: the function itself, wherever they are."""
    del place
    return worker


Progress = Callable[[int, int], None]
"""Called with the number of steps done and of all steps, for a progress bar."""
Note = Callable[[str], None]
"""Receives a sentence for the user about something that does not stop the work."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: with a result, or with an error in one sentence.

    attempts: how often it was started; more than once after a worker died
    """

    job: Any
    result: Any | None
    error: str | None
    attempts: int


class Engine(Protocol):
    """Runs jobs; a failed job never stops the others."""

    def run(self, make_worker: MakeWorker, jobs: Sequence[Any]) -> Generator[Outcome, None, None]:
        """The outcomes, as the jobs end. Closing the iterator ends the workers.

        An error of `make_worker` stops everything: it would be the same for every job.
        """


class WorkerBroken(Exception):
    """Raised by a worker whose process can no longer be used, for example after its GPU failed.

    The engine replaces the process and tries its jobs again, as if it had died. Otherwise one broken device would fail
    one job after another.
    """


def attempt(worker: Worker, job: Any) -> tuple[Any | None, str | None]:
    """The result of a job, or its error.

    A mistake of the user is reported as it is; anything else is a bug and is reported with its line of code.
    """
    try:
        return worker(job), None
    except WorkerBroken:
        raise
    except AsmilError as error:
        return None, str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the other jobs continue after any error
        return None, describe_bug(error)


def describe_bug(error: BaseException) -> str:
    """An unexpected error in one line: type, message, and the innermost line of code."""
    if is_gpu_full(error):
        return GPU_FULL
    message = one_line(str(error))
    described = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return described
    return f"{described} ({'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno})"


def describe_broken(error: WorkerBroken) -> str:
    """Why a worker can no longer be used."""
    return one_line(str(error)) or "a worker broke without giving a reason"


def one_line(text: str) -> str:
    """A text without line breaks, cut to a limited length."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "..."


def print_note(sentence: str) -> None:
    """Print a note to the standard error stream; the default for notes."""
    print(sentence, file=sys.stderr, flush=True)


def made_progress() -> None:
    """Called by a job, in the thread in which it was started, whenever a step is done.

    A time limit for jobs counts from the last step. A job that never calls this has the limit for all of it.
    """
    report: Callable[[], None] | None = getattr(_here, "report", None)
    if report is not None:
        report()


@contextmanager
def reporting_progress_to(report: Callable[[], None]) -> Iterator[None]:
    """Within, `made_progress` of this thread calls `report`."""
    _here.report = report
    try:
        yield
    finally:
        _here.report = None
