"""Time limits of jobs: how long each has made no progress, and which of them are over the limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from asmil.errors import AsmilError


class Watch:
    """The time of the last progress of every job at work.

    timeout_s: how long a job may make no progress; None: no limit
    """

    def __init__(self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._last: dict[int, dict[int, float]] = {}

    def begin(self, slot: int, job: int) -> None:
        """A job was given to a worker."""
        if self._timeout_s is not None:
            self._last.setdefault(slot, {})[job] = self._clock()

    def progressed(self, slot: int, job: int, silent_s: float) -> None:
        """Record that a job last made progress the given number of seconds ago."""
        jobs = self._last.get(slot, {})
        if job in jobs:
            jobs[job] = max(jobs[job], self._clock() - silent_s)

    def end(self, slot: int, job: int) -> None:
        self._last.get(slot, {}).pop(job, None)

    def forget(self, slot: int) -> None:
        """A worker is gone, and its jobs with it."""
        self._last.pop(slot, None)

    def forgive(self, seconds: float) -> None:
        """Do not count time in which the engine did not listen to the workers."""
        for jobs in self._last.values():
            for job in jobs:
                jobs[job] += seconds

    def patience_s(self) -> float | None:
        """Seconds until a job may reach the limit; None: no limit, or no job."""
        if self._timeout_s is None:
            return None
        oldest = min((last for jobs in self._last.values() for last in jobs.values()), default=None)
        return None if oldest is None else max(0.0, oldest + self._timeout_s - self._clock())

    def overdue(self) -> dict[int, set[int]]:
        """The jobs that have reached the limit, by slot."""
        if self._timeout_s is None:
            return {}
        latest = self._clock() - self._timeout_s
        late = {slot: {job for job, last in jobs.items() if last <= latest} for slot, jobs in self._last.items()}
        return {slot: jobs for slot, jobs in late.items() if jobs}


def no_progress(timeout_s: float | None) -> str:
    """Why a job was ended."""
    return (
        f"no progress for {timeout_s or 0:g} seconds, so its worker was ended; the file may be damaged, or its "
        "storage does not respond: copy it again, or allow more with --item-timeout"
    )


def checked_timeout(seconds: float | None, default: float) -> float | None:
    """What `--item-timeout` means: None: the default; 0: no limit, which is None."""
    if seconds is None:
        return default
    if not 0 <= seconds < float("inf"):
        raise AsmilError(f"--item-timeout {seconds:g}: give seconds, or 0 for no limit")
    return seconds or None
