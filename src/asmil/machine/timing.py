"""Where the time of a command goes: blocks of code have a name, and their seconds are added up when someone asks.

Time is counted once: that of a block inside another block belongs to the inner one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Timings:
    """Seconds by stage, of the process that asked; what other processes do in the meantime is time of the waiting one.

    rest: the name of what is in no block
    """

    def __init__(self, rest: str) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._names = [rest]
        self._since = time.perf_counter()

    def begin(self, name: str) -> None:
        """Enter a block."""
        self._count()
        self._names.append(name)

    def end(self) -> None:
        """Leave the block."""
        self._count()
        self._names.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._names[-1]] += now - self._since
        self._since = now


_asked: ContextVar[Timings | None] = ContextVar("_asked", default=None)


@contextmanager
def measured(rest: str = "everything else") -> Iterator[Timings]:
    """A block whose stages are measured."""
    timings = Timings(rest)
    token = _asked.set(timings)
    try:
        yield timings
    finally:
        _asked.reset(token)
        timings.end()


@contextmanager
def timed(name: str) -> Iterator[None]:
    """A block, or a function, that belongs to a stage."""
    timings = _asked.get()
    if timings is None:
        yield
        return
    timings.begin(name)
    try:
        yield
    finally:
        timings.end()
