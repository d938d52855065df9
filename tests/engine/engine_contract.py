"""What every engine does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asmil.engine import Engine
from asmil.errors import AsmilError
from tests.engine.engine_workers import MISTAKE, make_bug, make_nothing, make_worker


def check_all_results_arrive(engine: Engine) -> None:
    outcomes = list(engine.run(make_worker, [("double", value) for value in range(20)]))
    assert sorted((outcome.job[1], outcome.result) for outcome in outcomes) == [(n, 2 * n) for n in range(20)]
    assert all(outcome.error is None and outcome.attempts == 1 for outcome in outcomes)


def check_no_jobs_need_no_worker(engine: Engine) -> None:
    assert list(engine.run(make_nothing, [])) == []


def check_failures_are_told_and_stop_nothing(engine: Engine) -> None:
    jobs = [("double", 1), ("mistake", "a.svs"), ("bug", None), ("leave", None), ("double", 2), ("double", 3)]
    outcomes = {outcome.job: outcome for outcome in engine.run(make_worker, jobs)}
    assert outcomes.keys() == set(jobs)
    assert [outcomes["double", value].result for value in (1, 2, 3)] == [2, 4, 6]
    assert outcomes["mistake", "a.svs"].error == MISTAKE.format("a.svs")
    bug = outcomes["bug", None].error
    assert bug is not None
    assert bug.startswith("ValueError: two lines ")
    assert "engine/engine_workers.py:" in bug
    assert str(outcomes["leave", None].error).startswith("SystemExit: 3")
    assert all(outcome.attempts == 1 for outcome in outcomes.values())


def check_calls_overlap_within_a_worker(engine: Engine) -> None:
    """`engine` has one worker and a concurrency of two."""
    jobs = [*[("meet", number) for number in range(4)], *[("linger", 0.05 + number / 1e3) for number in range(6)]]
    outcomes = list(engine.run(make_worker, jobs))
    assert [outcome.error for outcome in outcomes] == [None] * 10
    assert max(outcome.result for outcome in outcomes if outcome.job[0] == "linger") == 2


def check_a_mistake_in_the_making_stops_everything(engine: Engine) -> None:
    with pytest.raises(AsmilError, match=r"^/weights\.pt.*--weights"):
        list(engine.run(make_nothing, [("double", value) for value in range(5)]))


def check_a_bug_in_the_making_stops_everything(engine: Engine) -> None:
    with pytest.raises((KeyError, RuntimeError), match="layer"):
        list(engine.run(make_bug, [("double", value) for value in range(5)]))


CHECKS: list[Callable[[Engine], None]] = [
    check_all_results_arrive,
    check_no_jobs_need_no_worker,
    check_failures_are_told_and_stop_nothing,
    check_calls_overlap_within_a_worker,
    check_a_mistake_in_the_making_stops_everything,
    check_a_bug_in_the_making_stops_everything,
]
