"""Jobs on a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from asmil.engine.driving import drive
from asmil.engine.jobs import MakeWorker, Note, Outcome, print_note
from asmil.engine.ray_fleet import Actors
from asmil.errors import AsmilError, first_line

_OBJECT_STORE_BYTES = 200_000_000
_ANSWERS_WITHIN_S = 10.0
_WHAT_TO_DO = 'start one with `ray start --head`, give "auto" or its host:port, or nothing for a Ray of this machine'


@dataclass(frozen=True)
class RayEngine:
    """Runs jobs in actors of a Ray cluster, in each of them `concurrency` at the same time.

    address: "auto", "host:port" or "ray://host:port" of a running cluster; None: a Ray of this machine, for this run
    workers: how many actors; None: as many as the nodes offer now
    cpus, gpus: what an actor asks for; fractions share a GPU
    retries: how often a job is tried again after its actor or node died
    item_timeout_s: how long a job may make no progress before its actor is ended; None: no limit

    A Ray session that is already open in this process is used as it is. asmil must be installed on all nodes.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    concurrency: int = 2
    retries: int = 3
    note: Note = print_note
    item_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if (self.workers is not None and self.workers < 1) or self.concurrency < 1:
            raise ValueError("RayEngine needs at least one worker, and a concurrency of at least one")

    def run(self, make_worker: MakeWorker, jobs: Sequence[Any]) -> Generator[Outcome, None, None]:
        """The outcomes, as the jobs end; closing the iterator ends the actors."""
        if not jobs:
            return
        with connected(self.address) as ray:
            workers = self.workers or self._as_many_as_fit(ray.nodes())
            fleet = Actors(ray, make_worker, self.cpus, self.gpus, self.concurrency, self.note, self.item_timeout_s)
            yield from drive(
                fleet, jobs, workers, self.concurrency, self.retries, self.note, item_timeout_s=self.item_timeout_s
            )

    def _as_many_as_fit(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        offers = [node["Resources"] for node in nodes if node["Alive"]]
        workers = sum(actors_on_node(offer, self.cpus, self.gpus) for offer in offers)
        if workers:
            return workers
        cores = max((offer.get("CPU", 0) for offer in offers), default=0)
        gpus = max((offer.get("GPU", 0) for offer in offers), default=0)
        raise AsmilError(
            f"no node of the Ray cluster offers {self.cpus:g} CPU and {self.gpus:g} GPU for a worker "
            f"(the most are {cores:g} CPU and {gpus:g} GPU); ask for less, or add a node"
        )


def actors_on_node(offer: Mapping[str, float], cpus: float, gpus: float) -> int:
    """How many actors a node has room for.

    >>> actors_on_node({"CPU": 16, "GPU": 2}, cpus=4, gpus=0.5)
    4
    """
    wanted = {"CPU": cpus, "GPU": gpus}
    # Ray counts in ten-thousandths; thirds must fit three times.
    return min((int(offer.get(name, 0) / amount + 1e-3) for name, amount in wanted.items() if amount > 0), default=1)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected; a session that is opened here ends here.

    address: "auto", "host:port" or "ray://host:port"; None: start a Ray on this machine
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise AsmilError("Ray is not installed; install it with `pip install 'asmil[ray]'`") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Jobs and results are small: the usual object store of a third of the memory would be wasted.
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    elif address != "auto":
        require_answer(address)
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except SystemExit:  # what Ray makes of SIGTERM meanwhile
        raise KeyboardInterrupt from None
    except (ImportError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = f"connect to the Ray cluster at {address}" if address else "start on this machine"
        raise AsmilError(f"Ray cannot {where} ({first_line(error).rstrip('.')}); {_WHAT_TO_DO}") from error
    with _no_echo(), _stopped_by_sigterm(before):
        try:
            yield ray
        finally:
            ray.shutdown()


def require_answer(address: str) -> None:
    """Refuse an address that does not answer; Ray itself would try it for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        raise AsmilError(f"{address!r} is not the address of a Ray cluster; {_WHAT_TO_DO}")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise AsmilError(
            f"no Ray cluster answers at {address} ({first_line(error).rstrip('.')}); {_WHAT_TO_DO}"
        ) from error


@contextmanager
def _stopped_by_sigterm(before: Any) -> Iterator[None]:
    """Let SIGTERM, with which schedulers stop a command, do what Ctrl-C does; Ray's handler prints a trace and aborts.

    before: the handler from before Ray started; one of Python stays in charge
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, before if callable(before) else interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextmanager
def _no_echo() -> Iterator[None]:
    """Keep Ray from writing about lost workers to the standard output, where results belong; notes report them."""
    try:
        from ray._private import worker

        before = worker._worker_logs_enabled
    except (ImportError, AttributeError):  # private to Ray, and may be missing in another version
        yield
        return
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before
