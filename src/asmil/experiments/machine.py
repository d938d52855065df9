"""Which engine trains, from what the user asked for."""

from __future__ import annotations

from dataclasses import dataclass

from asmil.engine import Engine, InlineEngine, LocalEngine, RayEngine
from asmil.errors import AsmilError, did_you_mean

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class TrainingMachine:
    """Where trainings run, one at a time in each worker.

    workers: processes; None: one for each GPU, or this process; 1: this process
    device: auto, cpu, cuda (all GPUs, shared out among the workers), or one such as cuda:1
    cpus, gpus: what Ray reserves for a worker; fractions share a GPU
    """

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    device: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0

    def prepare(self) -> tuple[Engine, bool]:
        """The engine, and whether it trains on GPUs."""
        if self.engine not in ENGINES:
            raise AsmilError(f"--engine {self.engine}: {did_you_mean(self.engine, ENGINES)}")
        if self.engine == "ray":
            return RayEngine(self.address, self.workers, self.cpus, self.gpus, concurrency=1), self.gpus > 0
        if self.address is not None:
            raise AsmilError("--address is of a Ray cluster; give --engine ray with it")
        devices = self._devices()
        workers = self.workers or len(devices)
        on_gpu = devices != ["cpu"]
        if workers == 1:
            return InlineEngine(device=devices[0]), on_gpu
        return LocalEngine(workers, concurrency=1, devices=devices), on_gpu

    def _devices(self) -> list[str]:
        import torch

        from asmil.training.setup import choose_device

        if self.device in ("auto", "cuda") and torch.cuda.is_available():
            return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        return [str(choose_device(self.device))]
