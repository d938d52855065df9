"""The plain way: one replica after another, each by the training loop of `asmil train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asmil.cohort.bag import Bag
from asmil.models.inference import infer
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.lockstep.replicas import Replica, SharedBags, scaled
from asmil.training.loop import Trainer


def train_one_at_a_time(
    trainers: Sequence[Trainer], bags: SharedBags, replicas: Sequence[Replica], every_epoch: bool
) -> npt.NDArray[np.float64]:
    """Probabilities E x R x B x K, as `train_side_by_side` gives them."""
    courses = [_train(*pair, bags, every_epoch) for pair in zip(trainers, replicas, strict=True)]
    return np.stack(courses, axis=1)


def _train(trainer: Trainer, replica: Replica, bags: SharedBags, every_epoch: bool) -> npt.NDArray[np.float64]:
    """E x B x K: what the replica says of all bags, after every epoch of its last stage or at the end."""
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
    """Training bags that come in the order which all replicas share, unless classes are balanced by drawing."""

    orders: Iterator[list[int]]

    def order(self, draw: np.random.Generator, balanced: bool) -> list[int]:
        return super().order(draw, balanced=True) if balanced else next(self.orders)


def _orders(replica: Replica, bags: SharedBags) -> Iterator[list[int]]:
    """Epoch by epoch, the places of the replica's training bags in the common order."""
    place = {int(bag): place for place, bag in enumerate(replica.train)}
    epoch = 0
    while True:
        yield [place[bag] for bag in bags.order(epoch) if bag in place]
        epoch += 1
