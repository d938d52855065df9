"""A function called on many items in other processes, so that an item that hangs or crashes affects only itself.

Meant for short calls on many items, such as reading the headers of 100,000 files: one process or a few for all of them,
and another only after an item that ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from asmil.engine.jobs import Outcome, describe_bug, ignore, same_anywhere
from asmil.engine.local import LocalEngine
from asmil.engine.watching import checked_timeout, no_progress
from asmil.errors import AsmilError

Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_A_PROCESS = 32
"""With fewer items no process is started, which takes seconds, unless the user sets a limit."""


def guarded(
    function: Callable[[Item], Result], items: Sequence[Item], timeout_s: float | None, processes: int = 1
) -> Iterator[Result | AsmilError]:
    """The results in the order of the items; for an item without a result, the error that explains why.

    function: of a module, so that another process can import it; exceptions become the error of the item
    timeout_s: for one item; None: no limit, and the calls are made in this process
    processes: how many items are processed at the same time

    An item that takes longer, or that crashes the process, fails; another process continues with the next item.
    """
    if timeout_s is None:
        yield from (_called(function, item) for item in items)
        return
    engine = LocalEngine(processes, concurrency=1, retries=0, note=ignore, item_timeout_s=timeout_s)
    early: dict[int, Result | AsmilError] = {}
    following = 0
    for outcome in engine.run(partial(same_anywhere, partial(_called_on, function)), list(enumerate(items))):
        early[outcome.job[0]] = _answer(outcome, timeout_s)
        while following in early:
            yield early.pop(following)
            following += 1


def _answer(outcome: Outcome, timeout_s: float) -> Any:
    """The result of an item, or the error that explains why there is none."""
    if outcome.error is None:
        return outcome.result
    if outcome.error == no_progress(timeout_s):
        return AsmilError(outcome.error)
    return AsmilError(f"reading it failed: {outcome.error}; copy or make the file again")


def guard_limit(asked_s: float | None, n_items: int, default_s: float) -> float | None:
    """The limit for `guarded`: the user's (0: none) or, if there are enough items for a process, the default."""
    if asked_s is None and n_items < WORTH_A_PROCESS:
        return None
    return checked_timeout(asked_s, default_s)


def _called_on(function: Callable[[Any], Any], numbered: tuple[int, Any]) -> Any:
    return _called(function, numbered[1])


def _called(function: Callable[[Any], Any], item: Any) -> Any:
    """The result or, as a value that keeps its type, the error."""
    try:
        return function(item)
    except AsmilError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the other items continue after any error
        return AsmilError(describe_bug(error))
