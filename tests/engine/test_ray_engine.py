"""A Ray cluster of several nodes on this machine. All in one file: starting a cluster takes seconds."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from asmil.engine import RayEngine, ray_fleet
from asmil.engine.ray_engine import actors_on_node, require_answer
from asmil.errors import AsmilError
from patience import PATIENCE_S
from ray_cluster import ray_cluster
from shared_data import REPOSITORY
from tests.engine.engine_contract import CHECKS
from tests.engine.engine_workers import make_worker

ray = pytest.importorskip("ray")

# A killed node is noticed sooner than by default.
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """At first a single node with two cores; this process is connected to it."""
    with ray_cluster(REPOSITORY, num_cpus=2, _system_config=QUICK) as cluster:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def second_node(cluster: Any) -> Any:
    """A node with two cores and what claims to be two GPUs; started once, since that takes seconds too."""
    return next(iter(cluster.worker_nodes), None) or cluster.add_node(num_cpus=2, num_gpus=2)


def raylet(node: Any) -> int:
    (started,) = node.all_processes["raylet"]
    return int(started.process.pid)


@pytest.mark.heavy
def test_contract(cluster):
    for check in CHECKS:
        check(RayEngine(workers=1, concurrency=2))


@pytest.mark.heavy
def test_a_job_that_kills_its_workers_is_told(cluster):
    jobs = [("die", None), ("double", 1), ("double", 2)]
    engine = RayEngine(workers=1, concurrency=3, retries=1, note=lambda sentence: None)
    outcomes = {outcome.job: outcome for outcome in engine.run(make_worker, jobs)}
    assert [outcomes["double", value].result for value in (1, 2)] == [2, 4]
    assert outcomes["die", None].attempts == 2
    assert re.search(r"Ray worker .*process .* on [\d.]+", str(outcomes["die", None].error))


@pytest.mark.heavy
def test_a_job_that_hangs_is_named_and_one_that_makes_progress_is_not(cluster):
    jobs = [("hang", "a.svs"), ("double", 1), ("steps", (16, 0.5))]
    engine = RayEngine(workers=1, concurrency=2, item_timeout_s=5.0, note=lambda sentence: None)
    outcomes = {outcome.job: outcome for outcome in engine.run(make_worker, jobs)}
    assert "--item-timeout" in str(outcomes["hang", "a.svs"].error)
    assert outcomes["double", 1].result == 2
    assert outcomes["steps", (16, 0.5)].result == 16


@pytest.mark.heavy
def test_workers_that_ask_for_gpus_are_where_gpus_are(cluster):
    pid = raylet(second_node(cluster))
    jobs = [("where", 0), ("environment", "CUDA_VISIBLE_DEVICES"), ("parent", 0), ("parent", 1)]
    outcomes = {outcome.job: outcome.result for outcome in RayEngine(cpus=0.5, gpus=1).run(make_worker, jobs)}
    assert outcomes["where", 0][1][1] == "cuda:0"
    assert outcomes["environment", "CUDA_VISIBLE_DEVICES"] in {"0", "1"}
    assert {outcomes["parent", 0], outcomes["parent", 1]} == {pid}


@pytest.mark.heavy
def test_a_lost_node_costs_no_job(cluster, tmp_path: Path):
    """One worker on each of two nodes; a node is killed in the middle of its jobs."""
    doomed = second_node(cluster)
    pid = raylet(doomed)
    jobs = [("long_under", (pid, str(tmp_path)))] * 12

    def kill_node_when_busy() -> None:
        assert until((tmp_path / "started").exists)
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=kill_node_when_busy)
    killer.start()
    notes: list[str] = []
    engine = RayEngine(workers=2, cpus=2, concurrency=2, note=notes.append)
    outcomes = list(engine.run(make_worker, jobs))
    killer.join()
    assert [outcome.error for outcome in outcomes] == [None] * 12
    assert pid not in {outcome.result for outcome in outcomes}
    assert sorted({outcome.attempts for outcome in outcomes}) == [1, 2]
    (note,) = notes
    assert re.search(r"Ray worker .*node .* on [\d.]+", note)


@pytest.mark.heavy
def test_a_cluster_that_is_too_small_is_told(cluster, monkeypatch):
    with pytest.raises(AsmilError, match="1 CPU and 7 GPU"):
        list(RayEngine(gpus=7).run(make_worker, [("double", 1)]))

    class Noted(Exception):
        pass

    def stop(sentence: str) -> None:
        raise Noted(sentence)

    monkeypatch.setattr(ray_fleet, "_NOTE_AFTER_S", 0.3)
    with pytest.raises(Noted, match="1 CPU and 7 GPU"):
        list(RayEngine(workers=1, gpus=7, note=stop).run(make_worker, [("double", 1)]))


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_command_that_started_them(cluster, tmp_path: Path, number: signal.Signals):
    """The command connects on its own, works, and is killed; SIGTERM interrupts it, where Ray would abort it."""
    script = (
        "import sys\n"
        "from asmil.engine import RayEngine\n"
        "from tests.engine.engine_workers import make_worker\n"
        "jobs = [('double', 2), ('write_pid', sys.argv[2])]\n"
        "for outcome in RayEngine(sys.argv[1], workers=1, concurrency=2).run(make_worker, jobs):\n"
        "    print(outcome.result, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, cluster.address, str(tmp_path)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "4\n"
        assert until(lambda: any(tmp_path.iterdir()))
        driver.send_signal(number)
        _, told = driver.communicate(timeout=PATIENCE_S)
    assert ("KeyboardInterrupt" in told, "SIGTERM" in told) == (number == signal.SIGTERM, False)
    (worker,) = tmp_path.iterdir()
    assert until(lambda: not psutil.pid_exists(int(worker.name)))


def test_what_ray_says_of_a_lost_worker_in_a_few_words():
    died = "The actor died unexpectedly before finishing this task.\n\tclass_name: Remote\n\tip: 10.0.0.3\n"
    killed = died + "The actor is dead because its worker process has died. Worker exit type: NODE_OUT_OF_MEMORY Worker"
    assert ray_fleet.why_lost(Exception(killed)).endswith("out of memory, on 10.0.0.3")
    node = ray_fleet.why_lost(Exception("The actor died because its node has died. Node Id: 7"))
    assert ("node" in node, "Id" in node) == (True, False)
    unavailable = ray_fleet.why_lost(Exception("The actor 7 is unavailable: no route. The task may"))
    assert unavailable.endswith("unavailable: no route")
    assert ray_fleet.why_lost(ValueError()) == "ValueError"


def test_room_on_a_node():
    assert actors_on_node({"CPU": 16, "GPU": 2}, cpus=4, gpus=0) == 4
    assert actors_on_node({"CPU": 16, "GPU": 2}, cpus=4, gpus=0.5) == 4
    assert actors_on_node({"CPU": 16, "GPU": 1}, cpus=1, gpus=1 / 3) == 3
    assert actors_on_node({"CPU": 16}, cpus=1, gpus=1) == 0


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nonsense", "host:port", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address: str):
    with pytest.raises(AsmilError, match=rf"{address}.* `ray start --head`"):
        require_answer(address)


def test_without_ray_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AsmilError, match=r"pip install 'asmil\[ray\]'"):
        list(RayEngine().run(make_worker, [("double", 1)]))
