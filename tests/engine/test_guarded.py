"""Calls in a process that may hang or crash."""

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from asmil.cohort.problems import CohortError, fail
from asmil.engine.guarded import WORTH_A_PROCESS, guard_limit, guarded
from asmil.errors import AsmilError

LONG_S = 120.0
SHORT_S = 2.0


def answer(item: tuple[str, Any]) -> Any:
    what, value = item
    if what == "hang":  # inside a library that holds the interpreter
        re.match(r"(a+)+b", "a" * 60)
    if what == "open":
        return Path(value).read_bytes()
    if what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "mistake":
        fail(value, "it is torn", "copy it again")
    if what == "bug":
        raise ZeroDivisionError(value)
    if what == "unsendable":
        return threading.Lock()
    return value, os.getpid()


def test_results_come_in_order_from_one_other_process():
    results = list(guarded(answer, [("give", n) for n in range(200)], LONG_S))
    assert [value for value, _ in results] == list(range(200))
    (process,) = {pid for _, pid in results}
    assert process != os.getpid()


def test_without_a_limit_it_is_this_process():
    assert list(guarded(answer, [("give", 1)], None)) == [(1, os.getpid())]
    (error,) = guarded(answer, [("bug", "b.h5")], None)
    assert isinstance(error, AsmilError)


def test_errors_are_those_of_their_items_and_keep_their_problems():
    items = [("mistake", "a.h5"), ("bug", "b.h5"), ("unsendable", 0), ("give", 1)]
    mistake, bug, unsendable, last = guarded(answer, items, LONG_S)
    assert isinstance(mistake, CohortError)
    assert mistake.problems[0].where == "a.h5"
    assert str(mistake) == str(mistake.problems[0])
    assert isinstance(bug, AsmilError)
    assert "ZeroDivisionError: b.h5" in str(bug)
    assert isinstance(unsendable, AsmilError)
    assert last[0] == 1


@pytest.mark.heavy
def test_items_that_hang_or_crash_are_told_and_the_others_done(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    items = [("give", 0), ("hang", 1), ("die", 2), ("give", 3), ("open", str(tmp_path / "fifo")), ("give", 5)]
    results = list(guarded(answer, items, SHORT_S))
    assert [isinstance(result, AsmilError) for result in results] == [False, True, True, False, True, False]
    assert "--item-timeout" in str(results[1])
    assert "signal 11" in str(results[2])
    assert [results[n][0] for n in (0, 3, 5)] == [0, 3, 5]


def test_results_of_several_processes_come_in_order():
    items = [("give", n) for n in range(40)] + [("mistake", "a.h5")] + [("give", n) for n in range(40, 80)]
    results = list(guarded(answer, items, LONG_S, processes=3))
    assert isinstance(results.pop(40), CohortError)
    assert [value for value, _ in results] == list(range(80))
    assert 1 < len({pid for _, pid in results}) <= 3


def test_closing_the_iterator_ends_the_process():
    run = guarded(answer, [("give", n) for n in range(10)] + [("hang", 0)], LONG_S)
    _, pid = next(run)
    run.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_is_started_where_it_is_worth_it_or_asked_for():
    assert guard_limit(None, WORTH_A_PROCESS - 1, 60.0) is None
    assert guard_limit(None, WORTH_A_PROCESS, 60.0) == 60.0
    assert guard_limit(5.0, 1, 60.0) == 5.0
    assert guard_limit(0.0, 1000, 60.0) is None
