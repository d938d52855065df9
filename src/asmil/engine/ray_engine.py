"""Jobs on a Ray cluster."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asmil.engine.driving import drive
from asmil.engine.jobs import MakeWorker, Note, Outcome, tell_stderr
from asmil.engine.ray_fleet import Actors
from asmil.engine.ray_session import connected
from asmil.errors import AsmilError


@dataclass(frozen=True)
class RayEngine:
    """Runs jobs in actors of a Ray cluster, `concurrency` at once in each.

    address: "auto", "host:port" or "ray://host:port" of a running cluster; None: a Ray of this machine, for this run
    workers: how many actors; None: as many as the nodes offer now
    cpus, gpus: what an actor asks for; fractions share a GPU
    retries: how often a job is tried again after its actor or node died
    item_timeout_s: how long a job may make no progress before its actor is ended; None: as long as it likes

    A Ray session that is already open in this process is used as it is. asmil is installed on all nodes.
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    concurrency: int = 2
    retries: int = 3
    note: Note = tell_stderr
    item_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if (self.workers is not None and self.workers < 1) or self.concurrency < 1:
            raise ValueError("RayEngine needs at least one worker and one job at once in it")

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
