"""The engine of an extraction, its workers and its reading threads, from the user's options."""

from __future__ import annotations

from dataclasses import dataclass

from asmil.engine.inline import InlineEngine
from asmil.engine.jobs import Engine, Report, ignore
from asmil.engine.local import LocalEngine
from asmil.engine.machine import Machine
from asmil.engine.ray_engine import RayEngine
from asmil.engine.watching import checked_timeout
from asmil.errors import AsmilError
from asmil.machine.cores import usable_cores
from asmil.slides.settings import SLIDE_TIMEOUT_S

SLIDES_AT_ONCE = 2
MOST_READERS = 16


@dataclass(frozen=True)
class ExtractionMachine(Machine):
    """Where an extraction runs.

    workers: None: one per GPU, or one per core; 0: this process
    item_timeout: seconds without progress after which a slide fails; 0: no limit; None:
        `SLIDE_TIMEOUT_S`, except for work in this process, which cannot be ended
    """

    item_timeout: float | None = None

    def prepare(self, n_slides: int, report: Report = ignore) -> tuple[Engine, int]:
        """The engine, and the threads that read tiles in each worker.

        report: called with the number of newly encoded tiles, if the engine supports it
        """
        on_ray = self.uses_ray()
        item_timeout_s = checked_timeout(self.item_timeout, SLIDE_TIMEOUT_S)
        if on_ray:
            if self.workers == 0:
                raise AsmilError("--workers 0 is this process alone; give --engine ray at least one worker, or none")
            readers = max(1, min(MOST_READERS, int(self.cpus)))
            engine = RayEngine(
                self.address, self.workers, self.cpus, self.gpus, SLIDES_AT_ONCE, item_timeout_s=item_timeout_s
            )
            return engine, readers
        devices, cores = self.devices(), usable_cores()
        if self.workers == 0:
            if self.item_timeout:
                raise AsmilError(
                    "--workers 0 works in this process, which --item-timeout cannot end; give at least one worker"
                )
            return InlineEngine(SLIDES_AT_ONCE, devices[0], report), min(MOST_READERS, cores)
        on_gpu = devices != ["cpu"]
        workers = max(1, min(self.workers or (len(devices) if on_gpu else cores), n_slides))
        threads = max(1, cores // workers)
        local = LocalEngine(
            workers,
            SLIDES_AT_ONCE,
            threads_per_worker=threads,
            devices=devices,
            report=report,
            item_timeout_s=item_timeout_s,
        )
        return local, min(MOST_READERS, threads)
