"""The loop that gives jobs to a fleet of workers and replaces those that are lost."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from typing import Any

from asmil.engine.fleet import Event, Finished, Fleet, Lost, NotMade, Progressed, Ready, Reported
from asmil.engine.jobs import Note, Outcome, Report, ignore
from asmil.engine.ledger import Ledger
from asmil.engine.watching import Watch, no_progress
from asmil.errors import AsmilError

_MOST_EARLY_LOSSES = 10
"""If more workers than this, plus three per slot, are lost before any job ends, the run is given up."""


def drive(
    fleet: Fleet,
    jobs: Sequence[Any],
    workers: int,
    concurrency: int,
    retries: int,
    note: Note,
    report: Report = ignore,
    item_timeout_s: float | None = None,
) -> Generator[Outcome, None, None]:
    """The outcomes of the jobs, as they end; the fleet is closed afterwards.

    Few jobs are spread over the workers rather than given to the first that is ready.

    item_timeout_s: a job without progress for this long fails, and its worker is ended. If the worker had other jobs,
        any of them may be the cause, so all are tried again first, each alone in a worker.
    """
    if not jobs:
        return
    workers = min(workers, len(jobs))
    ledger = Ledger(len(jobs), min(concurrency, math.ceil(len(jobs) / workers)), retries)
    watch = Watch(item_timeout_s)
    try:
        crew = _Crew(fleet, workers, retries, note)
        outcomes: list[Outcome] = []
        while True:
            for slot, index in ledger.assign():
                fleet.hand(slot, index, jobs[index])
                watch.begin(slot, index)
            # Only now, so that workers do not wait for what the caller does with the outcomes.
            left_at = time.monotonic()
            yield from outcomes
            watch.forgive(time.monotonic() - left_at)
            if ledger.finished:
                return
            ended = [
                end
                for event in fleet.wait(watch.patience_s())
                for end in _note_event(event, ledger, crew, watch, report)
            ]
            for slot, late in watch.overdue().items():
                fleet.stop(slot)
                watch.forget(slot)
                reason = no_progress(item_timeout_s)
                ended += [(index, None, reason) for index in ledger.stop(slot, late)]
                crew.is_stopped(slot, reason, needed=ledger.has_waiting)
            outcomes = [Outcome(jobs[index], result, error, ledger.attempts(index)) for index, result, error in ended]
    finally:
        fleet.close()


def _note_event(
    event: Event, ledger: Ledger, crew: _Crew, watch: Watch, report: Report
) -> list[tuple[int, Any | None, str | None]]:
    """Process an event; returns (job, result, error) of the jobs that it ends."""
    match event:
        case Ready(slot):
            crew.is_ready(slot)
            ledger.join(slot)
        case Finished(slot, index, result, error):
            ledger.finish(slot, index)
            watch.end(slot, index)
            crew.is_working()
            return [(index, result, error)]
        case Lost(slot, reason):
            given_up = ledger.lose(slot)
            watch.forget(slot)
            crew.is_lost(slot, reason, needed=ledger.has_waiting)
            return [(index, None, reason) for index in given_up]
        case NotMade(slot, message, mistake):
            crew.is_not_made(slot, message, mistake)
        case Reported(_, value):
            report(value)
        case Progressed(slot, index, silent_s):
            watch.progressed(slot, index, silent_s)
    return []


class _Crew:
    """The slots of a fleet: which are ready, which were refilled, which are out of use."""

    def __init__(self, fleet: Fleet, workers: int, retries: int, note: Note) -> None:
        self._fleet = fleet
        self._retries = retries
        self._note = note
        self._used = set(range(workers))
        self._ready: set[int] = set()
        self._refilled: set[int] = set()
        self._failed_starts = [0] * workers
        self._losses_left = _MOST_EARLY_LOSSES + 3 * workers
        self._working = False
        for slot in range(workers):
            fleet.start(slot)

    def is_ready(self, slot: int) -> None:
        self._ready.add(slot)
        self._failed_starts[slot] = 0

    def is_working(self) -> None:
        self._working = True

    def is_lost(self, slot: int, reason: str, needed: bool) -> None:
        self._failed_starts[slot] += slot not in self._ready
        self._ready.discard(slot)
        self._losses_left -= 1
        if self._losses_left < 0 and not self._working:
            raise AsmilError(f"one worker after the other is lost and no job has ended; the last: {reason}")
        if needed and self._failed_starts[slot] > self._retries:
            self.is_not_made(slot, f"workers do not start: {reason}; try fewer workers", mistake=True)
        else:
            self._replace(slot, reason, needed)

    def is_stopped(self, slot: int, reason: str, needed: bool) -> None:
        """A worker was ended on purpose; unlike a lost one it is not a sign of a problem with the machine."""
        self._ready.discard(slot)
        self._replace(slot, reason, needed)

    def is_not_made(self, slot: int, message: str, mistake: bool) -> None:
        """If no worker was ever ready, a failure to start one stops everything; later, the others continue."""
        self._used.discard(slot)
        if self._used and (slot in self._refilled or self._working):
            last_line = message.strip().splitlines()[-1]
            self._note(f"a worker could not be started, {len(self._used)} continue without it: {last_line}")
        elif mistake:
            raise AsmilError(message)
        else:
            raise RuntimeError(f"a worker could not be made:\n{message}")

    def _replace(self, slot: int, reason: str, needed: bool) -> None:
        if not needed:
            self._used.discard(slot)
            return
        self._note(f"{reason}; another is started")
        self._refilled.add(slot)
        self._fleet.start(slot)
