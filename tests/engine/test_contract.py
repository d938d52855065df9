"""What every engine does, for those of this machine; `test_ray_engine.py` asks the same of Ray."""

from collections.abc import Callable

import pytest

from asmil.engine import Engine, InlineEngine, LocalEngine
from tests.engine.engine_contract import CHECKS
from tests.engine.engine_workers import BROKEN, make_worker


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("engine", [InlineEngine(2), LocalEngine(1)], ids=["inline", "local"])
def test_contract(engine: Engine, check: Callable[[Engine], None]):
    check(engine)


@pytest.mark.parametrize(
    "make_engine", [lambda told: InlineEngine(2, report=told), lambda told: LocalEngine(1, report=told)]
)
def test_what_workers_tell_arrives_before_their_jobs_end(make_engine):
    told = []
    for outcome in make_engine(told.append).run(make_worker, [("tell", 3)]):
        assert (outcome.error, told) == (None, [0, 1, 2])


def test_one_job_at_a_time_runs_in_the_calling_thread_and_in_order():
    outcomes = list(InlineEngine().run(make_worker, [("linger", 0), ("double", 3), ("break_once", "/no/such")]))
    assert [outcome.result for outcome in outcomes[:2]] == [1, 6]
    assert "FileNotFoundError" in str(outcomes[2].error)


def test_inline_tells_a_broken_worker_as_the_error_of_its_job(tmp_path):
    (outcome,) = InlineEngine().run(make_worker, [("break_once", str(tmp_path / "marker"))])
    assert outcome.error == BROKEN


@pytest.mark.parametrize("concurrency", [1, 2])
def test_closing_an_inline_run_begins_no_more(concurrency: int):
    done = []

    def make(place):
        return done.append

    run = InlineEngine(concurrency).run(make, list(range(10)))
    next(run)
    run.close()
    assert len(done) <= 1 + concurrency
