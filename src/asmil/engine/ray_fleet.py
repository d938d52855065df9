"""A fleet of Ray actors."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

from asmil.engine.fleet import Event, Finished, Lost, NotMade, Progressed, Ready, end_of_job
from asmil.engine.jobs import MakeWorker, Note, Place, Worker, describe_bug
from asmil.errors import AsmilError
from asmil.machine.memory import share_gpus
from asmil.machine.process import own_process

_NOTE_AFTER_S = 30.0
_ASKED_IN_A_TIMEOUT = 10
"""How often an actor is asked for the progress of its jobs within the time limit of a job."""


class Remote:
    """What runs inside an actor."""

    def __init__(self, make_worker: MakeWorker, slot: int, sharers: int) -> None:
        self._make_worker = make_worker
        self._slot = slot
        self._sharers = sharers
        self._worker: Worker | None = None
        self._last_progress: dict[int, float] = {}

    def prepare(self) -> Event:
        """Make the worker; Ray has hidden all GPUs but those of this actor."""
        import ray

        own_process()
        util: Any = ray.util  # its functions are not typed
        place = Place(self._slot, "cuda:0" if ray.get_gpu_ids() else "cpu", sharers=self._sharers)
        try:
            share_gpus(place.sharers, place.device)
            self._worker = self._make_worker(place)
        except AsmilError as error:
            return NotMade(self._slot, f"{error} (on {util.get_node_ip_address()})", mistake=True)
        except Exception:  # noqa: BLE001 - the traceback is shown by the process that was asked to work
            return NotMade(self._slot, traceback.format_exc(), mistake=False)
        return Ready(self._slot)

    def work(self, index: int, job: Any) -> Event:
        assert self._worker is not None

        def note_progress() -> None:
            self._last_progress[index] = time.monotonic()

        try:
            return end_of_job(self._worker, self._slot, index, job, note_progress)
        finally:
            self._last_progress.pop(index, None)

    def progress(self) -> list[Event]:
        """When the running jobs last made progress, if they report it."""
        now = time.monotonic()
        return [Progressed(self._slot, job, now - last) for job, last in list(self._last_progress.items())]


@dataclass(frozen=True)
class _Call:
    """slot, and the job that was given to its actor (None: the making of its worker, or the question for progress)."""

    slot: int
    job: int | None
    asks_progress: bool = False


class Actors:
    """Actors in slots; one that cannot be placed yet waits in Ray until the cluster has room."""

    def __init__(
        self,
        ray: Any,
        make_worker: MakeWorker,
        cpus: float,
        gpus: float,
        concurrency: int,
        note: Note,
        item_timeout_s: float | None = None,
    ) -> None:
        self._ray = ray
        self._make_worker = make_worker
        # One thread more than jobs, so that Ray's own calls and questions for progress find one free.
        self._remote = ray.remote(Remote).options(
            num_cpus=cpus, num_gpus=gpus, max_concurrency=concurrency + 1, max_restarts=0, max_task_retries=0
        )
        self._sharers = int(1 / gpus) if 0 < gpus < 1 else 1
        self._wants = f"{cpus:g} CPU and {gpus:g} GPU"
        self._note = note
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, _Call] = {}
        self._ask_every_s = None if item_timeout_s is None else item_timeout_s / _ASKED_IN_A_TIMEOUT
        self._asked_at = self._heard_at = time.monotonic()

    def start(self, slot: int) -> None:
        actor = self._remote.remote(self._make_worker, slot, self._sharers)
        self._actors[slot] = actor
        self._calls[actor.prepare.remote()] = _Call(slot, None)

    def hand(self, slot: int, index: int, job: Any) -> None:
        self._calls[self._actors[slot].work.remote(index, job)] = _Call(slot, index)

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        self._ask_for_progress()
        limits = [_NOTE_AFTER_S, timeout_s, self._ask_every_s]
        patience_s = min(limit for limit in limits if limit is not None)
        done, _ = self._ray.wait(list(self._calls), timeout=patience_s)
        if not done:
            if time.monotonic() - self._heard_at >= _NOTE_AFTER_S:
                self._heard_at = time.monotonic()
                self._note_if_nothing_runs()
            return []
        self._heard_at = time.monotonic()
        call = self._calls.pop(done[0])
        if call.asks_progress:
            return self._progress(done[0])
        event = self._result(done[0], call)
        if isinstance(event, Lost | NotMade):
            self.stop(call.slot)
        return [event]

    def stop(self, slot: int) -> None:
        self._ray.kill(self._actors.pop(slot))
        self._calls = {reference: call for reference, call in self._calls.items() if call.slot != slot}

    def close(self) -> None:
        for slot in list(self._actors):
            self.stop(slot)

    def _ask_for_progress(self) -> None:
        if self._ask_every_s is None or time.monotonic() - self._asked_at < self._ask_every_s:
            return
        self._asked_at = time.monotonic()
        asked = {call.slot for call in self._calls.values() if call.asks_progress}
        for slot in {call.slot for call in self._calls.values() if call.job is not None} - asked:
            self._calls[self._actors[slot].progress.remote()] = _Call(slot, None, asks_progress=True)

    def _progress(self, reference: Any) -> list[Event]:
        try:
            events: list[Event] = self._ray.get(reference)
        except self._ray.exceptions.RayError:
            return []  # the actor is gone, which the calls of its jobs report
        return events

    def _result(self, reference: Any, call: _Call) -> Event:
        errors = self._ray.exceptions
        try:
            event: Event = self._ray.get(reference)
        except errors.RayTaskError as error:
            # Raised outside of the worker's own code: the result could not be sent.
            if call.job is None:
                return NotMade(call.slot, str(error), mistake=False)
            return Finished(call.slot, call.job, None, f"the result cannot be sent: {describe_bug(error.cause)}")
        except errors.RayError as error:
            return Lost(call.slot, f"a Ray worker was lost ({why_lost(error)})")
        return event

    def _note_if_nothing_runs(self) -> None:
        waiting = sum(call.job is None and not call.asks_progress for call in self._calls.values())
        if waiting == len(self._calls):
            resources = self._ray.cluster_resources()
            offered = f"{resources.get('CPU', 0):g} CPU and {resources.get('GPU', 0):g} GPU"
            self._note(
                f"all {waiting} workers wait for a place on the Ray cluster; each asks for {self._wants}, "
                f"and the cluster has {offered} (`ray status` shows what is in use)"
            )


def why_lost(error: Exception) -> str:
    """Ray's account of a lost worker in a few words: cause and node, without its list of possible reasons."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "because" in line), lines[0] if lines else type(error).__name__)
    cause = reason.split(". ")[0].split("because ")[-1].rstrip(".")
    if "NODE_OUT_OF_MEMORY" in str(error):
        cause = "its node ran out of memory"
    if cause.startswith("The "):
        cause = "t" + cause[1:]
    node = next((line.removeprefix("ip: ") for line in lines if line.startswith("ip: ")), None)
    return f"{cause}, on {node}" if node else cause
