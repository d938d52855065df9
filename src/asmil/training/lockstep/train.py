"""From settings, bags and replicas to probabilities: side by side where that is possible, else one at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asmil.arithmetic import exact_arithmetic
from asmil.tasks.classification import Classification, balanced_weights
from asmil.training.config import RunConfig
from asmil.training.lockstep.one_at_a_time import train_one_at_a_time
from asmil.training.lockstep.rehearsal import NotSideBySide
from asmil.training.lockstep.replicas import Replica, SharedBags, refuse_misfits, share_bags
from asmil.training.lockstep.side_by_side import SideBySide
from asmil.training.loop import Trainer
from asmil.training.setup import build_model, choose_device


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
    """What all replicas say of all bags: E x R x B x K probabilities, E the epochs, or 1: after the last only."""
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
    """Why `train_side_by_side` trains these replicas one at a time, in a few words; None where it does not."""
    shared = share_bags(bags, targets, n_classes, order_seed=0)
    refuse_misfits(replicas, shared)
    try:
        SideBySide(build_trainers(config, shared, replicas), shared, replicas)
    except NotSideBySide as reason:
        return str(reason)
    return None


def build_trainers(config: RunConfig, bags: SharedBags, replicas: Sequence[Replica]) -> list[Trainer]:
    """One training a replica, with its first weights, its optimizer and its own generator."""
    # All bags are predicted after every epoch, so whoever reads that chooses the epoch.
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
