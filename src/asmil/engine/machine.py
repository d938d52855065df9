"""The options of a command for where its work runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asmil.errors import AsmilError, did_you_mean

ENGINES = ("local", "ray")


def choose_device(name: str) -> torch.device:
    """The device by name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise AsmilError(
            f"the device {name!r} is not available here; `asmil doctor` lists what is, or choose auto"
        ) from None
    return device


@dataclass(frozen=True)
class Machine:
    """Where work runs.

    workers: processes; None: as many as the work can use here
    device: auto, cpu, cuda (all GPUs, shared out among the workers), or one such as cuda:1
    cpus, gpus: what Ray reserves for a worker; fractions share a GPU
    """

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    device: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0

    def uses_ray(self) -> bool:
        """Whether a Ray cluster does the work; engines that do not exist are refused."""
        if self.engine not in ENGINES:
            raise AsmilError(f"--engine {self.engine}: {did_you_mean(self.engine, ENGINES)}")
        if self.engine == "local" and self.address is not None:
            raise AsmilError("--address is the address of a Ray cluster; use it with --engine ray")
        return self.engine == "ray"

    def devices(self) -> list[str]:
        """The devices that the workers of this machine share."""
        if self.device in ("auto", "cuda") and torch.cuda.is_available():
            return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        return [str(choose_device(self.device))]
