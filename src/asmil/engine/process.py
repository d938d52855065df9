"""What runs inside a worker process: jobs arrive through a pipe, and outcomes return through it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn

from asmil.engine.fleet import Finished, Lost, NotMade, Progressed, Ready, Reported, end_of_job
from asmil.engine.jobs import MakeWorker, Place, Worker, describe_bug
from asmil.errors import AsmilError
from asmil.files import discard_partials
from asmil.machine.memory import share_gpus
from asmil.machine.process import own_process

_Job = tuple[int, Any]
_REPORT_EVERY_S = 0.2


def serve(pipe: Connection[Any, Any], make_worker: MakeWorker, place: Place, concurrency: int) -> None:
    """Make the worker and let it do jobs until the pipe closes, which it does whenever the other side is gone."""
    own_process()
    # Ctrl-C in a terminal reaches all processes; the one that was started by the user ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    jobs: SimpleQueue[_Job] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, jobs), daemon=True).start()
    slot, sending = place.index, threading.Lock()

    def report(value: Any) -> None:
        with sending, suppress(OSError):
            pipe.send(Reported(slot, value))

    try:
        share_gpus(place.sharers, place.device)
        worker = make_worker(replace(place, report=report))
    except AsmilError as error:
        pipe.send(NotMade(slot, str(error), mistake=True))
        return
    except BaseException:  # noqa: BLE001 - the traceback is shown by the process that was asked to work
        pipe.send(NotMade(slot, traceback.format_exc(), mistake=False))
        return
    pipe.send(Ready(slot))
    for _ in range(concurrency - 1):
        threading.Thread(target=_work, args=(pipe, sending, jobs, worker, slot), daemon=True).start()
    _work(pipe, sending, jobs, worker, slot)


def _receive(pipe: Connection[Any, Any], jobs: SimpleQueue[_Job]) -> None:
    try:
        while True:
            jobs.put(pipe.recv())
    except (EOFError, OSError):
        _leave(0)


def _work(
    pipe: Connection[Any, Any], sending: threading.Lock, jobs: SimpleQueue[_Job], worker: Worker, slot: int
) -> None:
    while True:
        index, job = jobs.get()
        end = end_of_job(worker, slot, index, job, _progress_reporter(pipe, sending, Progressed(slot, index)))
        with sending:
            try:
                pipe.send(end)
            except OSError:
                _leave(0)
            except Exception as error:  # noqa: BLE001 - a result that cannot be pickled fails in any way it likes
                pipe.send(Finished(slot, index, None, f"the result cannot be sent: {describe_bug(error)}"))
        if isinstance(end, Lost):
            _leave(1)


def _progress_reporter(pipe: Connection[Any, Any], sending: threading.Lock, event: Progressed) -> Callable[[], None]:
    """A function that reports the progress of a job, at most a few times per second."""
    last = time.monotonic()

    def report() -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_EVERY_S:
            last = time.monotonic()
            with sending, suppress(OSError):
                pipe.send(event)

    return report


def _leave(code: int) -> NoReturn:
    """End the process at once, whatever its threads are doing; files are written whole or not at all."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    discard_partials()
    os._exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    """Die of the signal as if it had not been caught, but leave no half-written file behind."""
    discard_partials()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
