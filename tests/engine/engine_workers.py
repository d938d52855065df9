"""Workers for the tests of the engines; worker processes import this module."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from asmil.engine import Place, Worker, WorkerBroken
from asmil.engine.jobs import made_progress
from asmil.errors import AsmilError

MISTAKE = "{}: this is no slide; give one"
BROKEN = "the GPU is gone"


def make_worker(place: Place) -> Worker:
    """A worker whose jobs are (what to do, with what)."""
    return Tasks(place)


class Tasks:
    def __init__(self, place: Place) -> None:
        self.place = place
        self.barrier = threading.Barrier(2)
        self.lock = threading.Lock()
        self.running = 0
        self.most = 0

    def __call__(self, job: tuple[str, Any]) -> Any:
        what, value = job
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return getattr(self, what)(value)
        finally:
            with self.lock:
                self.running -= 1

    def double(self, value: int) -> int:
        return value * 2

    def where(self, value: object) -> tuple[int, tuple[int, str]]:
        return os.getpid(), (self.place.index, self.place.device)

    def tell(self, value: int) -> None:
        for part in range(value):
            self.place.report(part)

    def meet(self, value: object) -> int:
        """Ends only if another call is within at the same time."""
        self.barrier.wait(timeout=900)
        return os.getpid()

    def linger(self, seconds: float) -> int:
        """The most calls that were ever within at the same time."""
        time.sleep(seconds)
        return self.most

    def wait_for(self, path: str) -> None:
        """Ends when there is such a file."""
        while not Path(path).exists():
            time.sleep(0.02)

    def mistake(self, name: str) -> None:
        raise AsmilError(MISTAKE.format(name))

    def bug(self, value: object) -> None:
        raise ValueError("two\nlines")

    def leave(self, value: object) -> None:
        sys.exit(3)

    def unsendable(self, value: object) -> Any:
        return threading.Lock()

    def die(self, value: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def die_once(self, marker: str) -> str:
        if not Path(marker).exists():
            Path(marker).touch()
            self.die(marker)
        return "second time"

    def break_once(self, marker: str) -> int:
        if not Path(marker).exists():
            Path(marker).touch()
            raise WorkerBroken(BROKEN.replace(" is", "\nis"))
        return os.getpid()

    def long_under(self, value: tuple[int, str]) -> int:
        """Leaves a file in a folder and takes long if its process is a child of the given one; others wait for it."""
        parent, folder = value
        started = Path(folder, "started")
        if os.getppid() == parent:
            started.touch()
            time.sleep(120)
        end = time.monotonic() + 60
        while not started.exists() and time.monotonic() < end:
            time.sleep(0.1)
        return os.getppid()

    def parent(self, value: object) -> int:
        return os.getppid()

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def write_pid(self, folder: str) -> None:
        """Leaves the number of its process as the name of a file, takes long, and leaves another file at its end."""
        Path(folder, str(os.getpid())).touch()
        time.sleep(120)
        Path(folder, f"finished-{os.getpid()}").touch()

    def hang(self, value: object) -> None:
        """Never ends, and holds on to the interpreter, as a library can."""
        re.match(r"(a+)+b", "a" * 60)

    def steps(self, value: tuple[int, float]) -> int:
        """Takes some steps of some seconds each, and tells of each."""
        number, seconds = value
        for _ in range(number):
            time.sleep(seconds)
            made_progress()
        return number

    def once_long(self, marker: str) -> int:
        """Takes long, but only at its first attempt."""
        if not Path(marker).exists():
            Path(marker).write_text(str(os.getpid()))
            time.sleep(120)
        return os.getpid()


def make_nothing(place: Place) -> Worker:
    raise AsmilError("/weights.pt: there is no such file; give --weights")


def make_bug(place: Place) -> Worker:
    raise KeyError("layer")


def make_slowly(place: Place) -> Worker:
    Path(os.environ["PIDS"], str(os.getpid())).touch()
    time.sleep(120)
    raise AssertionError


def make_dying(place: Place) -> Worker:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def make_dying_later(place: Place) -> Worker:
    """The first worker of each slot is good; none can be made after it."""
    marker = Path(os.environ["PIDS"], f"slot-{place.index}")
    if marker.exists():
        Path(os.environ["PIDS"], "not-replaced").touch()
        raise RuntimeError("the device is gone")
    marker.touch()
    return Tasks(place)
