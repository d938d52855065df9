"""Worker processes of this machine, and what is left when something kills them or us."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from asmil.engine import LocalEngine
from asmil.errors import AsmilError
from patience import PATIENCE_S
from shared_data import REPOSITORY
from tests.engine.engine_workers import BROKEN, make_dying, make_dying_later, make_worker


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_worker_killed_in_the_middle_of_a_job_is_replaced(tmp_path: Path):
    marker = tmp_path / "pid"
    notes: list[str] = []
    run = LocalEngine(1, concurrency=1, note=notes.append).run(make_worker, [("double", 4), ("once_long", str(marker))])
    assert next(run).result == 8
    assert until(lambda: marker.exists() and marker.read_text() != "")
    os.kill(int(marker.read_text()), signal.SIGKILL)
    (outcome,) = run
    assert outcome.attempts == 2
    assert outcome.error is None
    assert outcome.result != int(marker.read_text())
    (note,) = notes
    assert "signal 9" in note


def test_a_job_that_kills_its_workers_is_told_and_takes_no_other_with_it():
    jobs = [("die", None), *[("linger", 0.01 * n) for n in range(10)]]
    engine = LocalEngine(2, concurrency=3, note=lambda sentence: None)
    outcomes = {outcome.job: outcome for outcome in engine.run(make_worker, jobs)}
    assert outcomes.keys() == set(jobs)
    guilty = outcomes.pop(("die", None))
    assert "signal 9" in guilty.error
    assert guilty.attempts == 2
    assert [outcome.error for outcome in outcomes.values()] == [None] * 10
    assert max(outcome.attempts for outcome in outcomes.values()) == 2


@pytest.mark.heavy
def test_a_job_that_hangs_is_named_its_process_ended_and_the_others_done(tmp_path: Path):
    notes: list[str] = []
    jobs = [("hang", "a.svs"), *[("double", n) for n in range(4)]]
    engine = LocalEngine(1, concurrency=2, note=notes.append, item_timeout_s=3.0)
    outcomes = {outcome.job: outcome for outcome in engine.run(make_worker, jobs)}
    hung = outcomes.pop(("hang", "a.svs"))
    assert hung.result is None
    assert "--item-timeout" in str(hung.error)
    assert [outcomes["double", n].result for n in range(4)] == [0, 2, 4, 6]
    assert len(notes) >= 1


def test_a_long_job_that_makes_progress_is_left_alone():
    jobs = [("steps", (25, 0.2))]
    (outcome,) = LocalEngine(1, concurrency=1, item_timeout_s=3.0).run(make_worker, jobs)
    assert (outcome.result, outcome.attempts) == (25, 1)


def test_a_broken_worker_is_replaced(tmp_path: Path):
    notes: list[str] = []
    engine = LocalEngine(1, note=notes.append)
    jobs = [("where", None), ("break_once", str(tmp_path / "marker"))]
    first, second = sorted(engine.run(make_worker, jobs), key=lambda outcome: outcome.job[0] != "where")
    assert second.error is None
    assert second.attempts == 2
    assert first.error is None
    (note,) = notes
    assert BROKEN in note


def test_a_result_that_cannot_be_sent_is_the_error_of_its_job():
    outcomes = list(LocalEngine(1).run(make_worker, [("unsendable", 0), ("double", 1)]))
    results = {outcome.job[0]: outcome for outcome in outcomes}
    assert "TypeError" in str(results["unsendable"].error)
    assert results["double"].result == 2


def test_workers_that_die_while_they_start_end_the_run():
    engine = LocalEngine(2, note=lambda sentence: None)
    with pytest.raises(AsmilError, match="signal 9"):
        list(engine.run(make_dying, [("double", 1), ("double", 2)]))


def test_a_worker_that_cannot_be_replaced_leaves_the_work_to_the_others(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PIDS", str(tmp_path))
    notes: list[str] = []
    engine = LocalEngine(2, concurrency=1, note=notes.append)
    awaited = ("wait_for", str(tmp_path / "not-replaced"))
    jobs = [("die_once", str(tmp_path / "once")), awaited, *[("linger", 0.2 + n / 1e3) for n in range(6)]]
    outcomes = list(engine.run(make_dying_later, jobs))
    assert [outcome.error for outcome in outcomes] == [None] * 8
    assert "RuntimeError: the device" in notes[1]


def test_workers_have_their_device_and_their_threads(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    engine = LocalEngine(2, concurrency=1, devices=["cuda:0", "cuda:1"], threads_per_worker=3)
    outcomes = list(engine.run(make_worker, [("where", n) for n in range(2)]))
    places = {outcome.result[1] for outcome in outcomes}
    assert {device for _, device in places} <= {"cuda:0", "cuda:1"}
    assert all(device == f"cuda:{index}" for index, device in places)
    jobs = [("environment", "OMP_NUM_THREADS"), ("environment", "OPENBLAS_NUM_THREADS")]
    assert [outcome.result for outcome in engine.run(make_worker, jobs)] == ["3", "3"]
    own_choice = {outcome.job[1]: outcome.result for outcome in LocalEngine(1).run(make_worker, jobs)}
    assert own_choice["OMP_NUM_THREADS"] == "5"
    assert int(own_choice["OPENBLAS_NUM_THREADS"]) >= 1
    assert os.environ["OMP_NUM_THREADS"] == "5"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_several_workers_never_share_cores_and_know_who_shares_their_gpu(monkeypatch):
    monkeypatch.setattr("asmil.engine.local.physical_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4,2")
    settings = LocalEngine(2)._thread_settings()
    assert (settings["OMP_NUM_THREADS"], settings["MKL_NUM_THREADS"], settings["OPENBLAS_NUM_THREADS"]) == (
        "4",
        "2",
        "4",
    )
    engine = LocalEngine(3, devices=["cuda:0", "cuda:1"])
    assert [engine._place(slot).sharers for slot in range(3)] == [2, 1, 2]
    assert [LocalEngine(4, devices=["cuda:0"] * 4)._place(slot).sharers for slot in range(4)] == [4] * 4


def test_closing_the_iterator_ends_the_workers(tmp_path: Path):
    run = LocalEngine(2, concurrency=1).run(make_worker, [("where", 0), *[("write_pid", str(tmp_path))] * 4])
    first = next(run)
    assert until(lambda: len(list(tmp_path.iterdir())) >= 1)
    run.close()
    assert not list(tmp_path.glob("finished-*")), "the jobs are not waited for"
    assert all(ended(int(path.name)) for path in tmp_path.iterdir())
    assert ended(first.result[0])


SCRIPT = """
from asmil.engine import LocalEngine
from tests.engine import engine_workers

def main():
    engine = LocalEngine(2, concurrency=2)
    for outcome in engine.run(engine_workers.{make}, [{job}] * 4):
        print(outcome.result, flush=True)
"""
GUARD = 'if __name__ == "__main__":\n    main()\n'


def python(*arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


@pytest.fixture
def busy_parent(tmp_path: Path, request) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process in a group of its own, and the numbers of its two workers, which are in the middle of something."""
    (tmp_path / "pids").mkdir()
    job = ("write_pid", str(tmp_path / "pids"))
    (tmp_path / "script.py").write_text(SCRIPT.format(make=request.param, job=job) + GUARD)
    environment = {"PIDS": str(tmp_path / "pids")}
    with python(str(tmp_path / "script.py"), env=environment, start_new_session=True) as parent:
        assert until(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
        yield parent, [int(path.name) for path in (tmp_path / "pids").iterdir()]
        parent.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy_parent", ["make_worker", "make_slowly"], indirect=True)
def test_no_worker_outlives_the_process_that_started_it(busy_parent, number: signal.Signals):
    parent, workers = busy_parent
    parent.send_signal(number)
    _, told = parent.communicate(timeout=PATIENCE_S)
    assert until(lambda: all(map(ended, workers)))
    assert parent.returncode == -number
    assert told.count("Traceback") == (number == signal.SIGINT)


@pytest.mark.parametrize("busy_parent", ["make_worker"], indirect=True)
def test_ctrl_c_in_a_terminal_ends_everything_at_once(busy_parent, tmp_path: Path):
    parent, workers = busy_parent
    os.killpg(parent.pid, signal.SIGINT)
    _, told = parent.communicate(timeout=PATIENCE_S)
    assert not list((tmp_path / "pids").glob("finished-*")), "the jobs are not waited for"
    assert all(map(ended, workers))
    assert told.count("KeyboardInterrupt") == 1


def test_it_runs_from_scripts_modules_and_commands(tmp_path: Path):
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "__init__.py").write_text(SCRIPT.format(make="make_worker", job=("double", 4)))
    (tmp_path / "thing" / "__main__.py").write_text("from thing import main\nmain()\n")
    # What pip writes for an entry point.
    (tmp_path / "thing-command").write_text(f"import sys\nfrom thing import main\n{GUARD}")
    (tmp_path / "script.py").write_text(SCRIPT.format(make="make_worker", job=("double", 4)) + GUARD)
    runs = [
        python(*arguments, cwd=tmp_path)
        for arguments in (["-m", "thing"], ["thing-command"], ["script.py"], ["-c", "import thing; thing.main()"])
    ]
    for run in runs:
        out, told = run.communicate(timeout=PATIENCE_S)
        assert (out.split(), told) == (["8"] * 4, "")


def test_a_script_without_a_guard_is_told_so(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT.format(make="make_worker", job=("double", 4)) + "main()\n")
    run = python(str(tmp_path / "script.py"))
    _, told = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    assert "__main__" in told.splitlines()[-1]


def test_no_worker_is_no_engine():
    with pytest.raises(ValueError, match="worker"):
        LocalEngine(0)
