"""Jobs in processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from asmil.engine.driving import drive
from asmil.engine.fleet import Event, Lost, NotMade, Ready
from asmil.engine.jobs import MakeWorker, Note, Outcome, Place, Report, ignore, print_note
from asmil.engine.process import serve
from asmil.machine.cores import physical_cores

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
_PATIENCE_S = 2.0
_WHY_NOT_READY = '; its own message is above; a script that starts workers needs `if __name__ == "__main__":`'


@dataclass(frozen=True)
class LocalEngine:
    """Runs jobs in `workers` processes, in each of them `concurrency` at the same time.

    retries: how often a job is tried again after its process died
    threads_per_worker: threads of numerical libraries in a worker; None: the cores divided by the workers, or fewer if
        environment variables say so
    devices: given to the workers in turn; None: all on the CPU
    item_timeout_s: how long a job may make no progress before its process is ended; None: no limit
    note, report: receive sentences for the user, and the progress that workers report

    The processes are spawned and import the main module, so a script that uses this needs the usual
    `if __name__ == "__main__":`.
    """

    workers: int
    concurrency: int = 2
    retries: int = 1
    threads_per_worker: int | None = None
    devices: Sequence[str] | None = None
    note: Note = print_note
    report: Report = ignore
    item_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.concurrency < 1:
            raise ValueError("LocalEngine needs at least one worker, and a concurrency of at least one")

    def run(self, make_worker: MakeWorker, jobs: Sequence[Any]) -> Generator[Outcome, None, None]:
        """The outcomes, as the jobs end; closing the iterator ends the processes."""
        places = [self._place(slot) for slot in range(self.workers)]
        fleet = _Processes(make_worker, places, self.concurrency, self._thread_settings())
        return drive(
            fleet, jobs, self.workers, self.concurrency, self.retries, self.note, self.report, self.item_timeout_s
        )

    def _place(self, slot: int) -> Place:
        devices = self.devices or ["cpu"]
        number = slot % len(devices)
        same = [other for other in range(self.workers) if devices[other % len(devices)] == devices[number]]
        return Place(slot, devices[number], sharers=len(same))

    def _thread_settings(self) -> dict[str, str]:
        if self.threads_per_worker is not None:
            return dict.fromkeys(THREAD_VARIABLES, str(self.threads_per_worker))
        share = max(1, physical_cores() // self.workers)
        return {name: self._threads(os.environ.get(name, ""), share) for name in THREAD_VARIABLES}

    def _threads(self, given: str, share: int) -> str:
        """The value of a thread variable: the given one, but several workers never share a core."""
        if given and self.workers == 1:
            return given
        return str(min(int(given), share) if given.isdecimal() else share)


@dataclass(frozen=True)
class _Member:
    process: SpawnProcess
    pipe: Connection[Any, Any]


class _Processes:
    """A fleet of spawned processes, each with a pipe.

    Only this process holds the near end of a pipe: when it ends, however it ended, every worker reads the end of its
    pipe and exits.
    """

    def __init__(
        self, make_worker: MakeWorker, places: Sequence[Place], concurrency: int, environment: dict[str, str]
    ) -> None:
        self._make_worker = make_worker
        self._places = places
        self._concurrency = concurrency
        self._environment = environment
        self._members: dict[int, _Member] = {}
        self._ready: set[int] = set()

    def start(self, slot: int) -> None:
        context = get_context("spawn")
        near, far = context.Pipe()
        process = context.Process(
            target=serve,
            args=(far, self._make_worker, self._places[slot], self._concurrency),
            name=f"asmil worker {slot}",
            daemon=True,
        )
        with _environment(self._environment), interrupts_held_back():
            process.start()
        far.close()
        self._members[slot] = _Member(process, near)

    def hand(self, slot: int, index: int, job: Any) -> None:
        # A worker that has just died is reported by `wait`, with this job.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._members[slot].pipe.send((index, job))

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        slots = {member.pipe: slot for slot, member in self._members.items()}
        return [self._receive(slots[pipe]) for pipe in wait(list(slots), timeout_s) if isinstance(pipe, Connection)]

    def stop(self, slot: int) -> None:
        self._reap(slot)

    def close(self) -> None:
        for member in self._members.values():
            member.process.terminate()
        for slot in list(self._members):
            self._reap(slot)

    def _receive(self, slot: int) -> Event:
        try:
            event: Event = self._members[slot].pipe.recv()
        except (EOFError, OSError):
            was_ready = slot in self._ready
            return Lost(slot, how_it_died(self._reap(slot), was_ready))
        if isinstance(event, Ready):
            self._ready.add(slot)
        elif isinstance(event, Lost | NotMade):
            self._reap(slot)
        return event

    def _reap(self, slot: int) -> int | None:
        member = self._members.pop(slot)
        self._ready.discard(slot)
        member.pipe.close()
        member.process.join(_PATIENCE_S)
        if member.process.is_alive():
            member.process.kill()
            # With a limit: a process that waits for a failed disk inside the kernel cannot be killed.
            member.process.join(_PATIENCE_S)
        code = member.process.exitcode
        if code is not None:
            member.process.close()
        return code


def how_it_died(code: int | None, was_ready: bool) -> str:
    """A sentence about the exit code of a worker process."""
    when = "" if was_ready else " before it was ready"
    if code is not None and code < 0:
        name = (signal.strsignal(-code) or "unknown").lower()
        guess = "; out of memory?" if -code == signal.SIGKILL else ""
        return f"a worker process died{when} (signal {-code}: {name}{guess})"
    return f"a worker process ended{when} (code {code}{'' if was_ready else _WHY_NOT_READY})"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that libraries read when they are imported, for a process that starts within."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """A process that starts within does not receive Ctrl-C, not even before it can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
