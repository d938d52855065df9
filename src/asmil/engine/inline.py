"""Run jobs in this process."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from asmil.engine.jobs import MakeWorker, Outcome, Place, Report, Worker, WorkerBroken, attempt, describe_broken, ignore

_NO_MORE = object()


@dataclass(frozen=True)
class InlineEngine:
    """Runs jobs in `concurrency` threads of this process (1: in the calling thread).

    A running call cannot be interrupted from outside; closing the iterator only starts no further jobs.
    """

    concurrency: int = 1
    device: str = "cpu"
    report: Report = ignore

    def run(self, make_worker: MakeWorker, jobs: Sequence[Any]) -> Generator[Outcome, None, None]:
        """The outcomes, as the jobs end."""
        if not jobs:
            return
        worker = make_worker(Place(0, self.device, self.report))
        if self.concurrency == 1:
            yield from (_outcome(worker, job) for job in jobs)
        else:
            yield from _threaded(worker, jobs, self.concurrency)


def _threaded(worker: Worker, jobs: Sequence[Any], concurrency: int) -> Generator[Outcome, None, None]:
    waiting: SimpleQueue[Any] = SimpleQueue()
    ended: SimpleQueue[Outcome] = SimpleQueue()

    def work() -> None:
        while (job := waiting.get()) is not _NO_MORE:
            ended.put(_outcome(worker, job))

    threads = min(concurrency, len(jobs))
    # Daemons: after an interruption, a long call must not keep the process from ending.
    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    try:
        for job in jobs[:threads]:
            waiting.put(job)
        for following in [*jobs[threads:], *([_NO_MORE] * threads)]:
            outcome = ended.get()
            waiting.put(following)
            yield outcome
    finally:
        for _ in range(threads):
            waiting.put(_NO_MORE)


def _outcome(worker: Worker, job: Any) -> Outcome:
    try:
        result, error = attempt(worker, job)
    except WorkerBroken as broken:
        result, error = None, describe_broken(broken)
    return Outcome(job, result, error, attempts=1)
