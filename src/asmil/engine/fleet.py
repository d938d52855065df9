"""The interface between the loop that hands out jobs and the workers that do them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asmil.engine.jobs import Worker, WorkerBroken, attempt, describe_broken, reporting_progress_to


@dataclass(frozen=True)
class Ready:
    """The worker of a slot takes jobs from now on."""

    slot: int


@dataclass(frozen=True)
class NotMade:
    """The worker of a slot could not be made.

    mistake: whether the message is a sentence for the user (otherwise it is a traceback)
    """

    slot: int
    message: str
    mistake: bool


@dataclass(frozen=True)
class Finished:
    """A job ended, with a result or with an error."""

    slot: int
    job: int
    result: Any | None
    error: str | None


@dataclass(frozen=True)
class Lost:
    """The worker of a slot is gone, with all jobs it had."""

    slot: int
    reason: str


@dataclass(frozen=True)
class Reported:
    """A worker reported something while it works."""

    slot: int
    value: Any


@dataclass(frozen=True)
class Progressed:
    """A job made progress, the given number of seconds ago."""

    slot: int
    job: int
    silent_s: float = 0.0


Event = Ready | NotMade | Finished | Lost | Reported | Progressed


def end_of_job(worker: Worker, slot: int, index: int, job: Any, report: Callable[[], None]) -> Finished | Lost:
    """Do a job in the worker of a slot, and report its progress."""
    try:
        with reporting_progress_to(report):
            result, error = attempt(worker, job)
    except WorkerBroken as broken:
        return Lost(slot, describe_broken(broken))
    return Finished(slot, index, result, error)


class Fleet(Protocol):
    """Workers in numbered slots. After `Lost` or `NotMade` a slot is empty until it is started again."""

    def start(self, slot: int) -> None:
        """Start making the worker of an empty slot; `Ready`, `NotMade` or `Lost` follows."""

    def hand(self, slot: int, index: int, job: Any) -> None:
        """Give a job to a worker; `Finished` or `Lost` follows."""

    def wait(self, timeout_s: float | None = None) -> Sequence[Event]:
        """Wait for events and return them; none if nothing happens for a while, or within the timeout."""

    def stop(self, slot: int) -> None:
        """End the worker of a slot at once; the slot is then empty, and no event follows."""

    def close(self) -> None:
        """End all workers now."""
