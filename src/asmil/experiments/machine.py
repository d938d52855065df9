"""Which engine trains, from what the user asked for."""

from __future__ import annotations

from dataclasses import dataclass

from asmil.engine import Engine, InlineEngine, LocalEngine, RayEngine
from asmil.engine.machine import Machine


@dataclass(frozen=True)
class TrainingMachine(Machine):
    """Where trainings run, one at a time in each worker.

    workers: None: one for each GPU, or this process; 1: this process
    """

    def prepare(self) -> tuple[Engine, bool]:
        """The engine, and whether it trains on GPUs."""
        if self.uses_ray():
            return RayEngine(self.address, self.workers, self.cpus, self.gpus, concurrency=1), self.gpus > 0
        devices = self.devices()
        workers = self.workers or len(devices)
        on_gpu = devices != ["cpu"]
        if workers == 1:
            return InlineEngine(device=devices[0]), on_gpu
        return LocalEngine(workers, concurrency=1, devices=devices), on_gpu
