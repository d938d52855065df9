"""Training steps on bags on the device, padded to a few lengths; on a GPU each length has one CUDA graph.

Everything that differs between steps is read on the device: the bag numbers from the order of the epoch, the learning
rate from a table, and random numbers from the training's generator, whose state the graphs advance. All bags therefore
use the same kernels, and a resumed training is bitwise identical to an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.models.blocks.instance_loss import labels_known
from asmil.models.blocks.tile_passes import single_passes
from asmil.runs.config import TrainingConfig
from asmil.training.gradients import Parts
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer
from asmil.training.optimization import clip_gradients
from asmil.training.resident import ResidentBags
from asmil.training.turns import padded_length

WARM_UPS = 2
"""Warm-up steps before the first recording, in which libraries initialize; their effect is undone."""
SMALLEST_PIECE = 4096
PIECES = 24
"""Number of pieces of Adam's step: about as many as fit into one kernel launch in addition to the biases."""


class Shape(NamedTuple):
    """The shape that a step is recorded for.

    bags: number of bags
    rows: rows of each bag, including padding
    padded: whether there may be padding
    labels: the classes of the bags, if they determine which weights are used
    """

    bags: int
    rows: int
    padded: bool
    labels: tuple[int, ...] | None


class Steps:
    """The steps of one stage of a training.

    The trainer must be prepared (started or resumed), and its bags must be in `pool`.
    """

    def __init__(self, trainer: Trainer, pool: ResidentBags, train: LabeledBags) -> None:
        self.trainer, self.model, self.pool, self.train = trainer, trainer.model, pool, train
        self.numbers = torch.tensor(pool.numbers(train.bags))
        pool.set_targets(self.numbers.tolist(), train.targets)
        device, settings, count = trainer.device, trainer.settings, len(train.bags)
        self.labels = train.targets.tolist()
        # the bags in the order of the epoch: first row in the pool, number of tiles, class
        self.order = torch.zeros(count, 3, dtype=torch.int64, device=device)
        self.counters = torch.tensor([0, trainer.progress.step], device=device)
        self.position, self.step = self.counters[:1], self.counters[1:]
        self.losses = torch.zeros(count, 0, device=device)
        self.gradients = trainer.gradients
        self._row = torch.arange(padded_length(max(pool.sizes), 1), device=device)
        self._slots = torch.arange(settings.batch, device=device)
        self._ends = {
            size: torch.tensor([size, 1], device=device) for size in {settings.batch, *_rest(count, settings)}
        }
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        self._is_warm = False
        if device.type == "cuda":
            self._memory = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream(device)
        groups = trainer.optimizer.param_groups
        per_epoch = -(-count // settings.batch)
        factors = torch.tensor([trainer.lr_factor(step, per_epoch) for step in range(per_epoch * trainer.epochs)])
        base = torch.tensor([float(group["base_lr"]) for group in groups])
        self._rates = (factors.unsqueeze(1) * base).to(device, torch.float32)
        self._rate = self._rates[:1].clone()
        _fill_state(trainer.optimizer)
        for number, group in enumerate(groups):
            group["lr"] = self._rate[0, number]

    def epoch(self, order: list[int]) -> Iterator[None]:
        """Start the steps of an epoch in this order of training bags, one with each iteration.

        On a GPU, the steps run in a stream of their own, so that several trainings can run at the same time; `losses`
        holds the loss parts, one row per bag, when the device has finished.
        """
        batch = self.trainer.settings.batch
        numbers = self.numbers[order]
        sizes = [self.pool.sizes[number] for number in numbers.tolist()]
        self.begin_epoch(numbers)
        for first in range(0, len(order), batch):
            together = slice(first, min(first + batch, len(order)))
            shape = self._shape(sizes[together], [self.labels[i] for i in order[together]])
            if shape is None:
                with self._own_stream():
                    self._one_by_one(numbers[together].tolist())
            elif self.trainer.device.type != "cuda":
                self._take(shape)
            else:
                graph = self._graph(shape)
                with self._own_stream():
                    graph.replay()
            yield

    def _own_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._side) if self.trainer.device.type == "cuda" else nullcontext()

    def begin_epoch(self, numbers: Tensor) -> None:
        """Set the bags of the next steps, by number in the pool."""
        pool, wanted = self.pool, numbers.to(self.order.device)
        bags = torch.stack([column[wanted].long() for column in (pool.offsets, pool.lengths, pool.targets)], dim=1)
        self.order[: len(bags)] = bags
        self.position.zero_()
        if self.trainer.device.type == "cuda":
            self._side.wait_stream(torch.cuda.current_stream())

    def _shape(self, sizes: list[int], labels: list[int]) -> Shape | None:
        """The shape of the step for these bags; None if a bag of a batch is too short to be padded."""
        fewest = self.trainer.model.batch_from
        assert fewest is not None, "settings_reason excludes other methods"
        if len(sizes) > 1 and min(sizes) < fewest:
            return None
        routed = tuple(labels) if self.trainer.model.label_routes_gradients else None
        rows = padded_length(max(sizes), fewest)
        return Shape(len(sizes), rows, max(sizes) >= fewest, routed)

    def _take(self, shape: Shape) -> None:
        """Take one step for bags of a shape."""
        positions = self.position if shape.bags == 1 else self.position + self._slots[: shape.bags]
        first, lengths, targets = self.order.index_select(0, positions).split(1, dim=1)
        row, pool = self._row[: shape.rows], self.pool.features
        # the padding is whatever follows in the pool: any finite numbers will do
        rows = (first + row).flatten().clamp_(max=len(pool) - 1)
        features = pool.index_select(0, rows).unflatten(0, (shape.bags, shape.rows))
        mask, targets, gradients = row < lengths, targets.flatten(), self.gradients
        self._begin()
        with single_passes(), nullcontext() if shape.labels is None else labels_known(shape.labels):
            if shape.bags == 1:
                bag = Bag(features[0], mask=mask[0] if shape.padded else None, validated=True)
                _, parts = gradients.of_one(bag, targets, 1)
            else:
                _, parts = gradients.of_padded(features, mask, targets)
        self._end(positions, _stacked(parts), list(parts))

    def _one_by_one(self, numbers: list[int]) -> None:
        """Take one step for bags that cannot be padded together."""
        self._begin()
        noted: list[Tensor] = []
        for number in numbers:
            bag = self.pool.bag(number)
            target = self.pool.targets[number : number + 1].long()
            _, parts = self.gradients.of_one(bag, target, len(numbers))
            noted.append(_stacked(parts))
        positions = self.position + self._slots[: len(numbers)]
        self._end(positions, torch.stack(noted), list(parts))

    def _begin(self) -> None:
        optimizer = self.trainer.optimizer
        torch.index_select(self._rates, 0, self.step, out=self._rate)
        optimizer.zero_grad(set_to_none=True)

    def _end(self, positions: Tensor, values: Tensor, names: list[str]) -> None:
        trainer = self.trainer
        clip_gradients(trainer.optimizer, trainer.settings.clip_norm)
        adam_step(trainer.optimizer)
        for stabilizer in trainer.stabilizers.values():
            stabilizer.update(trainer.model)
        if self.losses.shape[1] == 0:
            trainer.progress.part_names = names
            self.losses = self.losses.new_zeros(len(self.losses), len(names))
        self.losses.index_copy_(0, positions, values.expand(len(positions), -1))
        self.counters += self._ends[len(positions)]

    # Recording

    def _graph(self, shape: Shape) -> torch.cuda.CUDAGraph:
        graph = self._graphs.get(shape)
        if graph is None:
            graph = self._graphs[shape] = self._record(shape)
        return graph

    def _record(self, shape: Shape) -> torch.cuda.CUDAGraph:
        if not self._is_warm:
            self._warm_up(shape)
            self._is_warm = True
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.trainer.generator)
        torch.cuda.synchronize()
        with _capturable(self.trainer.optimizer), torch.cuda.stream(self._side):
            # other threads may use the GPU at the same time to read features
            graph.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            try:
                self._take(shape)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._side)
        return graph

    def _warm_up(self, shape: Shape) -> None:
        """Take some steps and undo them."""
        trainer = self.trainer
        state = trainer.generator.get_state()
        with _unchanged(self._tensors()):
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                for _ in range(WARM_UPS):
                    self._take(shape)
                    self.counters -= self._ends[shape.bags]
            torch.cuda.current_stream().wait_stream(self._side)
        trainer.generator.set_state(state)
        trainer.optimizer.zero_grad(set_to_none=True)

    def _tensors(self) -> list[Tensor]:
        """All tensors that a step changes."""
        trainer = self.trainer
        stabilizing = [
            tensor
            for stabilizer in trainer.stabilizers.values()
            for tensor in (*stabilizer.parameters(), *stabilizer.buffers())
        ]
        moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
        return [*trainer.model.parameters(), *trainer.model.buffers(), *stabilizing, *moments, self.counters]


def _rest(bags: int, settings: TrainingConfig) -> tuple[int, ...]:
    """The size of the last batch of an epoch, if it is smaller than the others."""
    return (bags % settings.batch,) if bags % settings.batch else ()


def _stacked(parts: Parts) -> Tensor:
    return torch.stack([value.detach().float() for value in parts.values()])


def _fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Initialize Adam's state of every parameter; otherwise it would be created during the recording."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


@contextmanager
def _capturable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    for group in optimizer.param_groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in optimizer.param_groups:
            group["capturable"] = False


@contextmanager
def _unchanged(tensors: list[Tensor]) -> Iterator[None]:
    """Restore the values of the tensors at the end of the block."""
    values = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def adam_step(optimizer: torch.optim.Optimizer) -> None:
    """The step of `torch.optim.Adam` or `AdamW` (created with `fused=True`) for parameters with a gradient.

    Torch's fused step assigns 65,536 values to a block of threads, so a small model is only a few blocks on a GPU that
    could run a hundred times as many. The same step on smaller pieces gives the same numbers in a third of the time.
    """
    update = getattr(torch, "_fused_adamw_" if decouples_decay(optimizer) else "_fused_adam_", None)
    if update is None:
        optimizer.step()
        return
    with torch.no_grad():
        for group in optimizer.param_groups:
            _step_group(optimizer, group, update)


def decouples_decay(optimizer: torch.optim.Optimizer) -> bool:
    """Whether weight decay is decoupled, as in AdamW; in Adam it is added to the gradient."""
    return isinstance(optimizer, torch.optim.AdamW)


def _step_group(optimizer: torch.optim.Optimizer, group: dict[str, Any], update: Any) -> None:
    reached = [parameter for parameter in group["params"] if parameter.grad is not None]
    states = [optimizer.state[parameter] for parameter in reached]
    if not reached:
        return
    torch._foreach_add_([state["step"] for state in states], 1)
    size = max(SMALLEST_PIECE, -(-sum(parameter.numel() for parameter in reached) // (4 * PIECES)) * 4)
    columns: list[list[Tensor]] = [[], [], [], []]
    steps: list[Tensor] = []
    for parameter, state in zip(reached, states, strict=True):
        whole = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        pieces = [tensor.detach().reshape(-1).split(size) for tensor in whole]
        for column, parts in zip(columns, pieces, strict=True):
            column += parts
        steps += [state["step"]] * len(pieces[0])
    beta1, beta2 = group["betas"]
    update(
        *columns,
        [],
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
