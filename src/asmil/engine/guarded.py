"""A function called on many items in one other process, so that an item that hangs or crashes affects only itself.

Meant for short calls on many items, such as reading the headers of 100,000 files: one process for all of them, and
another only after an item that ended it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from asmil.engine.jobs import describe_bug
from asmil.engine.local import how_it_died, interrupts_held_back
from asmil.engine.watching import checked_timeout, no_progress
from asmil.errors import AsmilError

Item = TypeVar("Item")
Result = TypeVar("Result")

_READY = "ready"
_PATIENCE_S = 2.0
WORTH_A_PROCESS = 32
"""With fewer items no process is started, which takes seconds, unless the user sets a limit."""


def guarded(
    function: Callable[[Item], Result], items: Sequence[Item], timeout_s: float | None
) -> Iterator[Result | AsmilError]:
    """The results in the order of the items; for an item without a result, the error that explains why.

    function: of a module, so that another process can import it; exceptions become the error of the item
    timeout_s: for one item; None: no limit, and the calls are made in this process

    An item that takes longer, or that crashes the process, fails; another process continues with the next item.
    """
    if timeout_s is None:
        yield from (_called(function, item) for item in items)
        return
    done = 0
    while done < len(items):
        for result in _results(function, items[done:], timeout_s):
            done += 1
            yield result


def guard_limit(asked_s: float | None, n_items: int, default_s: float) -> float | None:
    """The limit for `guarded`: the user's (0: none) or, if there are enough items for a process, the default."""
    if asked_s is None and n_items < WORTH_A_PROCESS:
        return None
    return checked_timeout(asked_s, default_s)


def _results(function: Callable[[Any], Any], items: Sequence[Any], timeout_s: float) -> Iterator[Any]:
    """Results from one process; the last is the error of the item that hung or crashed, if one did."""
    context = get_context("spawn")
    near, far = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(far, function, items), name="asmil reader", daemon=True)
    with interrupts_held_back():
        process.start()
    far.close()
    ready = False
    try:
        near.recv()  # imports may take long and do not count as an item
        ready = True
        for _ in items:
            # Timed from here: what the caller does with a result does not count for the next item.
            if not near.poll(timeout_s):
                yield AsmilError(no_progress(timeout_s))
                return
            yield near.recv()
    except (EOFError, OSError):
        process.join(_PATIENCE_S)
        reason = how_it_died(process.exitcode, ready)
        if not ready:
            raise AsmilError(reason) from None
        yield AsmilError(f"reading it ended the process that did so: {reason}; copy or make the file again")
    finally:
        near.close()
        process.kill()
        # With a limit: a process that waits for a failed disk inside the kernel cannot be killed.
        process.join(_PATIENCE_S)


def _work(pipe: Connection[Any, Any], function: Callable[[Any], Any], items: Sequence[Any]) -> None:
    # Ctrl-C in a terminal reaches all processes; the one that was started by the user ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.send(_READY)
        for item in items:
            result = _called(function, item)
            try:
                pipe.send(result)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - a result that cannot be pickled fails in any way it likes
                pipe.send(AsmilError(f"the result cannot be sent: {describe_bug(error)}"))
    except OSError:
        return  # the other side is gone


def _called(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return function(item)
    except AsmilError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the other items continue after any error
        return AsmilError(describe_bug(error))
