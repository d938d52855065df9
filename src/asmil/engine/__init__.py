"""Where work runs: in this process, in processes of this machine, or on a Ray cluster."""

from asmil.engine.inline import InlineEngine
from asmil.engine.jobs import Engine, Outcome, Place, Worker, WorkerBroken
from asmil.engine.local import LocalEngine
from asmil.engine.ray_engine import RayEngine

__all__ = ["Engine", "InlineEngine", "LocalEngine", "Outcome", "Place", "RayEngine", "Worker", "WorkerBroken"]
