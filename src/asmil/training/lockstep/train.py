"""Train replicas and return their probabilities: side by side if possible, else one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.machine.arithmetic import exact_arithmetic
from asmil.models.inference import infer
from asmil.runs.config import RunConfig
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification, balanced_weights
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.lockstep.rehearsal import NotSideBySide
from asmil.training.lockstep.replicas import Replica, SharedBags, refuse_misfits, scaled, share_bags
from asmil.training.lockstep.side_by_side import SideBySide
from asmil.training.loop import Trainer


@exact_arithmetic()
def train_side_by_side(
    config: RunConfig,
    bags: Sequence[Tensor],
    targets: npt.NDArray[np.int64] | Tensor,
    n_classes: int,
    replicas: Sequence[Replica],
    order_seed: int,
    every_epoch: bool,
) -> npt.NDArray[np.float64]:
    """Probabilities of all replicas for all bags, E x R x B x K; E: number of epochs, or 1 for the last epoch only."""
    shared = share_bags(bags, targets, n_classes, order_seed)
    refuse_misfits(replicas, shared)
    trainers = build_trainers(config, shared, replicas)
    try:
        together = SideBySide(trainers, shared, replicas)
    except NotSideBySide:
        return train_one_at_a_time(trainers, shared, replicas, every_epoch)
    return together.train(every_epoch)


def obstacle(
    config: RunConfig,
    bags: Sequence[Tensor],
    targets: npt.NDArray[np.int64] | Tensor,
    n_classes: int,
    replicas: Sequence[Replica],
) -> str | None:
    """Why `train_side_by_side` trains these replicas one at a time, as a phrase; None if side by side."""
    shared = share_bags(bags, targets, n_classes, order_seed=0)
    refuse_misfits(replicas, shared)
    try:
        SideBySide(build_trainers(config, shared, replicas), shared, replicas)
    except NotSideBySide as reason:
        return str(reason)
    return None


def build_trainers(config: RunConfig, bags: SharedBags, replicas: Sequence[Replica]) -> list[Trainer]:
    """One trainer per replica, with its initial weights, its optimizer and its own generator."""
    if config.init.weights is not None:
        raise AsmilError(f"init.weights = {config.init.weights}: not supported for these small trainings; leave it out")
    # all bags are predicted after every epoch, so the caller chooses the epoch
    settings = config.training.model_copy(update={"select": "last", "early_stopping": None, "precision": "fp32"})
    config = config.model_copy(update={"training": settings})
    device = choose_device(settings.device)
    trainers = []
    for replica in replicas:
        weights = None
        if settings.class_weights == "balanced":
            weights = balanced_weights(bags.targets[replica.train].tolist(), bags.n_classes)
        task = Classification([str(number) for number in range(bags.n_classes)], weights)
        model = build_model(config, bags.width, task.n_outputs, replica.seed)
        trainers.append(Trainer(model, task, config, seed=replica.seed, device=device))
    return trainers


def train_one_at_a_time(
    trainers: Sequence[Trainer], bags: SharedBags, replicas: Sequence[Replica], every_epoch: bool
) -> npt.NDArray[np.float64]:
    """Probabilities E x R x B x K, as returned by `train_side_by_side`."""
    courses = [_train(*pair, bags, every_epoch) for pair in zip(trainers, replicas, strict=True)]
    return np.stack(courses, axis=1)


def _train(trainer: Trainer, replica: Replica, bags: SharedBags, every_epoch: bool) -> npt.NDArray[np.float64]:
    """E x B x K: probabilities of the replica for all bags, after every epoch of its last stage or at the end."""
    center, scale = (torch.as_tensor(values, dtype=torch.float32) for values in (replica.center, replica.scale))
    seen = [
        trainer.stages[-1].model.prepare(Bag(scaled(features, center, scale), id=f"bag {number}"))
        for number, features in enumerate(bags.features)
    ]
    course: list[npt.NDArray[np.float64]] = []

    def predict() -> None:
        logits = torch.stack([infer(trainer.model, bag, trainer.device).logits for bag in seen])
        course.append(torch.softmax(logits.double(), dim=-1).numpy())

    def note(record: Mapping[str, Any]) -> None:
        del record
        if every_epoch and trainer.stage is trainer.stages[-1]:
            predict()

    trainer.on_epoch = note
    own = BagList([seen[i] for i in replica.train])
    trainer.fit(_InCommonOrder(own, bags.targets[replica.train], orders=_orders(replica, bags)), None)
    if not every_epoch:
        predict()
    return np.stack(course)


@dataclass(frozen=True, kw_only=True)
class _InCommonOrder(LabeledBags):
    """Training bags in the common order of all replicas, unless sampling is balanced."""

    orders: Iterator[list[int]]

    def order(self, draw: np.random.Generator, balanced: bool) -> list[int]:
        return super().order(draw, balanced=True) if balanced else next(self.orders)


def _orders(replica: Replica, bags: SharedBags) -> Iterator[list[int]]:
    """For every epoch, the indices of the replica's training bags in the common order."""
    place = {int(bag): place for place, bag in enumerate(replica.train)}
    epoch = 0
    while True:
        yield [place[bag] for bag in bags.order(epoch) if bag in place]
        epoch += 1
