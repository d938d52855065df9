"""One training by several processes started by torchrun, which share the bags of every step.

Each process computes the gradients of its bags, the gradients are summed, and every process takes the same optimizer
step, so that all processes have the same weights at any time. Process 0, the leader, writes the run folder and prints;
the others receive the run from it and end with it.

Before tensors are exchanged, the processes exchange a status (on the CPU). If a process fails or is asked to stop, all
processes therefore end at the same step, and none is left waiting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from asmil.cohort.splits import Splits
from asmil.cohort.units import Unit
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.models.base import MILModel
from asmil.runs.checkpoint import digest
from asmil.runs.config import RunConfig
from asmil.settings.documents import one_line
from asmil.training.interruption import Interrupted
from asmil.training.setup import build_stages

T = TypeVar("T")
CONTINUE, STOP, DONE, FAILED = range(4)
"""The status of a process; the highest status of all processes applies."""
TIMEOUT = timedelta(days=7)
"""How long processes wait for the leader to inspect a cohort or write reports; a lost process ends them immediately."""
_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"


class OneProcess:
    """A training in a single process: nothing is exchanged."""

    rank = 0
    count = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0

    @property
    def on_this_machine(self) -> int:
        """Number of processes on this machine."""
        return 1

    def device(self, name: str) -> torch.device:
        """The device of this process, for `training.device`."""
        return choose_device(name)

    def share_of(self, positions: range) -> range:
        """The part of consecutive indices that this process computes."""
        return positions

    def sum(self, values: Tensor) -> None:
        """Sum the values of all processes, in place."""

    def sum_step(self, parameters: Sequence[nn.Parameter], losses: Tensor) -> None:
        """Sum the gradients of a step and the losses of its bags, which are 0 for bags of other processes."""

    def from_leader(self, value: T) -> T:
        """The leader's value."""
        return value

    def share_state(self, module: nn.Module) -> None:
        """Copy the leader's weights and buffers to all processes."""

    def agreed(self, asked: Callable[[], bool]) -> Callable[[], bool]:
        """Whether any process was asked to stop; all processes get the same answer at the same step."""
        return asked

    def refuse_differing(self, tensors: Mapping[str, Tensor], method: str) -> None:
        """Raise if the tensors of the processes are not bitwise identical."""


class SharedSteps(OneProcess):
    """The processes that share the steps of a training."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()
        self._asked: Callable[[], bool] = lambda: False
        self._stops = False

    @property
    def on_this_machine(self) -> int:
        """The processes of this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def device(self, name: str) -> torch.device:
        """The device of this process, for `training.device`: every process of a machine has its own GPU."""
        if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        if name not in ("auto", "cuda"):
            raise AsmilError(f"training.device = {name}: torchrun gives each process its own GPU; choose auto or cpu")
        gpus = torch.cuda.device_count()
        if self.on_this_machine > gpus:
            raise AsmilError(
                f"torchrun started {self.on_this_machine} processes on a machine with {gpus} GPUs; start one process "
                "per GPU, or train with --device cpu"
            )
        device = choose_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
        torch.cuda.set_device(device)
        return device

    def share_of(self, positions: range) -> range:
        """The part of consecutive indices that this process computes; shares differ in size by at most one."""
        return share_of(positions, self.rank, self.count)

    def sum(self, values: Tensor) -> None:
        """Sum the values of all processes, in place."""
        self._meet()
        with _connected():
            distributed.all_reduce(values)

    def sum_step(self, parameters: Sequence[nn.Parameter], losses: Tensor) -> None:
        """Sum the gradients of a step and the losses of its bags, which are 0 for bags of other processes.

        A parameter that no bag of the step reached has no gradient afterwards, as in one process: an optimizer does not
        change it, but would apply weight decay if the gradient were 0.
        """
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters
        ]
        reached = losses.new_tensor([parameter.grad is not None for parameter in parameters])
        parts = [*gradients, reached, losses]
        flat = torch.cat([part.reshape(-1).to(gradients[0].dtype) for part in parts])
        self.sum(flat)
        *summed, counts, rows = flat.split([part.numel() for part in parts])
        for parameter, gradient, count in zip(parameters, summed, counts.tolist(), strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.dtype, copy=True) if count else None
        losses.copy_(rows.view_as(losses))

    def from_leader(self, value: T) -> T:
        """The leader's value."""
        self._meet()
        box = [value]
        with _connected():
            distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def share_state(self, module: nn.Module) -> None:
        """Copy the leader's weights and buffers to all processes."""
        mine = {name: tensor.cpu() for name, tensor in module.state_dict().items()} if self.leads else {}
        module.load_state_dict(self.from_leader(mine))

    def agreed(self, asked: Callable[[], bool]) -> Callable[[], bool]:
        """Whether any process was asked to stop; all processes get the same answer at the same step."""
        self._asked = asked
        return lambda: self._stops

    def refuse_differing(self, tensors: Mapping[str, Tensor], method: str) -> None:
        """Raise if the tensors of the processes are not bitwise identical."""
        self._meet()
        plain = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        digests: list[str] = [""] * self.count
        with _connected():
            distributed.all_gather_object(digests, digest(plain, {}))
        other = next((rank for rank, own in enumerate(digests) if own != digests[0]), None)
        if other is not None:
            raise AsmilError(
                f"the weights of process {other} differ from those of process 0: {method} changes weights outside the "
                "optimizer step, so several processes cannot train it; train it without torchrun"
            )

    def end(self, error: BaseException | None) -> None:
        """Send the final status of this process to the others, and wait until all have ended.

        The others wait for the end of the leader's process, since torchrun ends all processes as soon as one fails:
        the leader must have saved and printed everything by then.
        """
        if isinstance(error, _LostError):
            return
        status = CONTINUE
        if self.leads:
            status = DONE if error is None else FAILED
            self._exchange(status, _sentence(error))
        elif isinstance(error, _EndedError):
            status = error.status
        elif not isinstance(error, Interrupted | None):
            self._exchange(FAILED, _sentence(error))
        while not self.leads and status != DONE:
            status, _ = self._exchange(CONTINUE)
        if status == DONE:
            distributed.destroy_process_group()

    def _meet(self) -> None:
        """Wait for all processes; raise if one of them has ended."""
        status, sentence = self._exchange(STOP if self._asked() else CONTINUE)
        if status == FAILED and self.leads:
            raise AsmilError(sentence)
        if status in (DONE, FAILED):
            raise _EndedError(status)
        self._stops = self._stops or status == STOP

    def _exchange(self, status: int, sentence: str = "") -> tuple[int, str]:
        """The largest status of all processes, and the error of the first that failed."""
        largest = torch.tensor(status)
        sentences = [""] * self.count
        with _connected():
            distributed.all_reduce(largest, distributed.ReduceOp.MAX)
            if largest == FAILED:
                distributed.all_gather_object(sentences, sentence)
        return int(largest), next(filter(None, sentences), "")


def share_of(positions: range, rank: int, count: int) -> range:
    """The part of consecutive indices that one of several processes computes; the last process has the last index.

    >>> [share_of(range(10, 15), rank, 2) for rank in (0, 1)]
    [range(10, 12), range(12, 15)]
    """
    return positions[len(positions) * rank // count : len(positions) * (rank + 1) // count]


class _EndedError(Exception):
    """The leader has ended, or another process failed; the leader reports it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _LostError(AsmilError):
    """Another process was lost, so nothing can be exchanged any more."""


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise _LostError(
            f"another process of the training was lost ({one_line(error)}); run the same command again to resume"
        ) from None


def _sentence(error: BaseException | None) -> str:
    return str(error) if isinstance(error, AsmilError) else f"{type(error).__name__}: {error}"


@contextmanager
def step_processes() -> Iterator[OneProcess]:
    """The processes that torchrun started, or this one alone; if one of them fails, all end.

    User errors are raised only in the leader; the other processes exit without a message.
    """
    if _BY_TORCHRUN not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield OneProcess()
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    processes = SharedSteps()
    try:
        yield processes
    except BaseException as error:
        with suppress(_LostError):
            processes.end(error)
        if processes.leads or not isinstance(error, AsmilError | Interrupted | _EndedError):
            raise
        done = isinstance(error, _EndedError) and error.status == DONE
        raise SystemExit(0 if done else 130 if isinstance(error, Interrupted) else 1) from None
    try:
        processes.end(None)
    except _LostError:
        if processes.leads:
            raise
        raise SystemExit(1) from None


def refuse_unshareable_run(config: RunConfig, processes: int) -> None:
    """Raise if the steps of a run have too few bags to share, or compare the bags of a step."""
    training = config.training
    if training.bags_per_step < processes:
        raise AsmilError(
            f"{processes} processes share the bags of a step, but a step has {training.bags_per_step}; set "
            f"training.accumulate (or training.batch) to {processes} or more, for example training.accumulate="
            f"{4 * processes}"
        )
    if config.folds > 1 or config.seeds > 1 or config.nested.folds or config.data.leave_out == "site":
        raise _several_trainings()
    if training.executor in ("fused", "graphed"):
        raise AsmilError(
            f"training.executor = {training.executor} trains in one process; leave it out, or start asmil without "
            "torchrun"
        )
    if config.task.chosen_loss == "cox":
        raise AsmilError(
            "task.loss = cox compares all patients of a step, so its bags cannot be shared between processes; choose "
            "task.loss=incidence or hazard, or start asmil without torchrun"
        )
    if config.stabilizers.temporal.weight:
        raise AsmilError(
            "stabilizers.temporal stores the attention of every slide, but a slide is processed by a different "
            "process in every epoch; leave it out, or start asmil without torchrun"
        )


def refuse_unshareable_method(model: MILModel, method: str, processes: int) -> None:
    """Raise if a method must process its bags one after the other."""
    stages = [stage.model for stage in build_stages(model, seed=0)]
    in_order = any(type(stage).after_step is not MILModel.after_step for stage in stages)
    if in_order or any(isinstance(part, _BatchNorm) for stage in stages for part in stage.modules()):
        raise AsmilError(
            f"{method} processes the bags of a step one after the other (prototypes, a teacher or running means), so "
            f"{processes} processes cannot share them; start asmil without torchrun"
        )


def refuse_unshareable_splits(units: Sequence[Unit], splits: Splits, processes: int) -> None:
    """Raise if there is more than one fold, or fewer training bags than processes."""
    if splits.n_folds > 1:
        raise _several_trainings()
    trained = set(splits.slides(0, "train"))
    bags = sum(unit.slides[0].slide in trained for unit in units)
    if bags < processes:
        raise AsmilError(f"{processes} processes cannot share {bags} training bags; start fewer processes")


def _several_trainings() -> AsmilError:
    return AsmilError(
        "torchrun shares the steps of one training, but this run has several folds or seeds, which are independent; "
        "train them in parallel with --engine local or --engine ray, without torchrun"
    )
