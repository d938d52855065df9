"""How a job reports to the engine, while it works, that another step is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_here = threading.local()


def made_progress() -> None:
    """Called by a job, in the thread in which it was started, whenever a step is done.

    A time limit for jobs counts from the last step. A job that never calls this has the limit for all of it.
    """
    tell: Callable[[], None] | None = getattr(_here, "tell", None)
    if tell is not None:
        tell()


@contextmanager
def progress_told_to(tell: Callable[[], None]) -> Iterator[None]:
    """Within, `made_progress` of this thread calls `tell`."""
    _here.tell = tell
    try:
        yield
    finally:
        _here.tell = None
