"""Stop a training on request without losing progress."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The user (or the scheduler) asked to stop; progress has been saved."""


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that is set by the first SIGINT or SIGTERM; a second signal interrupts immediately.

    Outside the main thread signals cannot be caught, and the event is never set.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def note(number: int, frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def advanced(sessions: Sequence[tuple[T, Iterator[None]]]) -> list[tuple[T, Iterator[None]]]:
    """Advance every session to its next epoch; return those that are not finished.

    If one is interrupted, the others are advanced nevertheless, so that all have saved their state.
    """
    left, interrupted = [], False
    for trainer, session in sessions:
        try:
            next(session)
        except StopIteration:
            continue
        except Interrupted:
            interrupted = True
        else:
            left.append((trainer, session))
    if interrupted:
        raise Interrupted
    return left
