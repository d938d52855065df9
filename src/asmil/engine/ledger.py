"""Which worker has which jobs, and which jobs of a dead worker are tried again."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection


class Ledger:
    """Which jobs wait, run or have ended, by their numbers.

    Several jobs run in one worker at the same time, so it is unknown which of them caused its death. All of them are
    suspects: each is tried again alone in a worker, where a second death is its own fault.
    """

    def __init__(self, jobs: int, concurrency: int, retries: int) -> None:
        self._fresh = deque(range(jobs))
        self._suspects: deque[int] = deque()
        self._attempts = [0] * jobs
        self._held: dict[int, set[int]] = {}
        self._with_suspect: set[int] = set()
        self._open = jobs
        self._concurrency = concurrency
        self._retries = retries

    @property
    def finished(self) -> bool:
        """Whether every job has ended or was given up."""
        return self._open == 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._fresh or self._suspects)

    def attempts(self, job: int) -> int:
        """How often a job was started."""
        return self._attempts[job]

    def join(self, slot: int) -> None:
        """A worker is ready for jobs."""
        self._held[slot] = set()

    def assign(self) -> list[tuple[int, int]]:
        """(slot, job) of all jobs that can start now; the slot with the fewest jobs gets the next one."""
        started = []
        for slot in [slot for slot, held in self._held.items() if not held]:
            if self._suspects:
                self._with_suspect.add(slot)
                started.append(self._begin(slot, self._suspects.popleft()))
        while self._fresh:
            takers = [slot for slot in self._held if self._has_room(slot)]
            if not takers:
                break
            started.append(self._begin(min(takers, key=lambda slot: len(self._held[slot])), self._fresh.popleft()))
        return started

    def finish(self, slot: int, job: int) -> None:
        self._held[slot].remove(job)
        self._with_suspect.discard(slot)
        self._open -= 1

    def lose(self, slot: int) -> list[int]:
        """A worker is gone; returns the jobs that have been tried often enough."""
        self._with_suspect.discard(slot)
        given_up = []
        for job in sorted(self._held.pop(slot, ())):
            if self._attempts[job] > self._retries:
                given_up.append(job)
            else:
                self._suspects.append(job)
        self._open -= len(given_up)
        return given_up

    def stop(self, slot: int, late: Collection[int]) -> list[int]:
        """A worker was stopped because jobs were late; returns the job to give up, if it was alone in the worker.

        Among several jobs it is unknown which one blocked the others, so each is tried again alone.
        """
        self._with_suspect.discard(slot)
        held = sorted(self._held.pop(slot))
        if len(held) == 1 and held[0] in late:
            self._open -= 1
            return held
        self._suspects.extend(held)
        return []

    def _has_room(self, slot: int) -> bool:
        return slot not in self._with_suspect and len(self._held[slot]) < self._concurrency

    def _begin(self, slot: int, job: int) -> tuple[int, int]:
        self._held[slot].add(job)
        self._attempts[job] += 1
        return slot, job
