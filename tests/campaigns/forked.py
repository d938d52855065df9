"""Work in forked processes, which share what their parent imported: one that hangs or crashes is replaced at no cost.

The parent must not have started threads: it imports, and leaves all work to its children.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

PARENT_CHECK_S = 5.0


@dataclass(frozen=True)
class Hung:
    """The task took longer than it may."""

    seconds: float


@dataclass(frozen=True)
class Died:
    """The process ended in the middle of the task: `signal 11`, `exit code 3`."""

    how: str


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Any = None
    deadline: float | None = None


def run_forked(
    tasks: Iterable[Any], make_work: Callable[[int], Callable[[Any], Any]], workers: int, timeout_s: float
) -> Iterator[tuple[Any, Any]]:
    """Every task with what `make_work(slot)(task)` returned for it in a forked process, or `Hung`, or `Died`."""
    waiting = deque(tasks)
    crew = {slot: _start(slot, make_work) for slot in range(min(workers, len(waiting)))}
    try:
        for worker in crew.values():
            _hand(worker, waiting, timeout_s)
        while busy := [worker for worker in crew.values() if worker.deadline is not None]:
            first = min(worker.deadline for worker in busy if worker.deadline is not None)
            wait([worker.pipe for worker in busy], timeout=max(0.0, first - time.monotonic()))
            for slot, worker in crew.items():
                if worker.deadline is None:
                    continue
                result = _result(worker, timeout_s)
                if result is None:
                    continue
                yield worker.task, result[0]
                if not worker.process.is_alive():
                    worker.pipe.close()
                    worker = crew[slot] = _start(slot, make_work)
                _hand(worker, waiting, timeout_s)
    finally:
        for worker in crew.values():
            worker.process.kill()
            worker.process.join()


def _start(slot: int, make_work: Callable[[int], Callable[[Any], Any]]) -> _Worker:
    context = get_context("fork")
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(far, make_work, slot, os.getpid()), daemon=False)
    process.start()
    far.close()
    return _Worker(process, near)


def _serve(pipe: Connection, make_work: Callable[[int], Callable[[Any], Any]], slot: int, parent: int) -> None:
    work = make_work(slot)
    while True:
        while not pipe.poll(PARENT_CHECK_S):
            if os.getppid() != parent:
                os._exit(1)
        pipe.send((work(pipe.recv()),))


def _hand(worker: _Worker, waiting: deque[Any], timeout_s: float) -> None:
    worker.task, worker.deadline = None, None
    if waiting:
        worker.task = waiting.popleft()
        worker.deadline = time.monotonic() + timeout_s
        worker.pipe.send(worker.task)


def _result(worker: _Worker, timeout_s: float) -> tuple[Any] | None:
    """What became of the task, None while it runs."""
    try:
        if worker.pipe.poll():
            return worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return (Died(describe_exit(worker.process.exitcode or 0)),)
    if worker.deadline is not None and time.monotonic() > worker.deadline:
        worker.process.kill()
        worker.process.join()
        return (Hung(timeout_s),)
    return None


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
