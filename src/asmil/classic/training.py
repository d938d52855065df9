"""Train on parts of a benchmark set side by side, and predict all bags after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from asmil.classic.bag_set import BagSet
from asmil.classic.folds import scaling
from asmil.engine.machine import choose_device
from asmil.errors import AsmilError
from asmil.runs.config import RunConfig
from asmil.runs.model import build_model
from asmil.tables.arrays import Floats, Integers
from asmil.tasks.classification import Classification, balanced_weights
from asmil.training.labeled_bags import BagList, BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.side_by_side.bags import NotSideBySide, StandardizedBags
from asmil.training.side_by_side.train import fit_side_by_side

CLASSES = ("0", "1")


def train_parts(config: RunConfig, bag_set: BagSet, parts: Sequence[Integers], seed: int) -> tuple[Floats, str | None]:
    """Train once on each of some parts of the bags; side by side, or one at a time if the method needs that.

    Returns the probabilities of all bags after every epoch of the last stage (E x R x B x 2), and the reason why the
    trainings ran one at a time, or None.
    """
    trainings = make_trainings(config, bag_set, parts, seed)
    reason = None
    try:
        train_side_by_side(trainings)
    except NotSideBySide as obstacle:
        reason = str(obstacle)
        for training in trainings:
            training.train_alone()
    return np.stack([training.course for training in trainings], axis=1), reason


def make_trainings(config: RunConfig, bag_set: BagSet, parts: Sequence[Integers], seed: int) -> list[PartTraining]:
    """A training for each part; their weights and random numbers depend on the seed and the number of the part."""
    if config.init.weights is not None:
        raise AsmilError(f"init.weights = {config.init.weights}: not supported for these small trainings; leave it out")
    # all bags are predicted after every epoch, so the rules of the benchmark choose the epoch
    settings = config.training.model_copy(update={"select": "last", "early_stopping": None, "precision": "fp32"})
    config = config.model_copy(update={"training": settings})
    features = [torch.from_numpy(bag) for bag in bag_set.bags()]
    return [PartTraining(config, bag_set, features, part, seed, number) for number, part in enumerate(parts)]


def train_side_by_side(trainings: Sequence[PartTraining], on_epoch: Callable[[], None] = lambda: None) -> None:
    """Train all; raises `NotSideBySide`, before any step, if they cannot be trained side by side."""
    fit_side_by_side(
        [training.trainer for training in trainings],
        [
            training.start(training.bags, training.bags.chosen(training.part.tolist()), on_epoch)
            for training in trainings
        ],
        [None] * len(trainings),
    )


class PartTraining:
    """A training on a part of the bags, with features standardized by these bags.

    bags: all bags, as the training sees them
    course: the probabilities of all bags after every epoch, B x 2 each
    """

    def __init__(
        self, config: RunConfig, bag_set: BagSet, features: list[Tensor], part: Integers, seed: int, number: int
    ) -> None:
        self.part, self.label, self.order_seed = part, bag_set.label, seed
        weights = None
        if config.training.class_weights == "balanced":
            weights = balanced_weights(self.label[part].tolist(), len(CLASSES))
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        model = build_model(config, bag_set.n_features, len(CLASSES), own_seed)
        device = choose_device(config.training.device)
        self.trainer = Trainer(model, Classification(CLASSES, weights), config, seed=own_seed, device=device)
        center, scale = (torch.from_numpy(values) for values in scaling(bag_set, part))
        self.bags = StandardizedBags(features, range(len(features)), center, scale)
        self.course: list[Floats] = []

    def start(self, bags: BagSource, own: BagSource, on_epoch: Callable[[], None]) -> LabeledBags:
        """The training bags with their labels; `bags`, all bags, are predicted after every epoch from now on."""
        trainer, self.course = self.trainer, []

        def predict(record: object) -> None:
            if trainer.stage is trainer.stages[-1]:
                self.course.append(torch.softmax(trainer.logits(bags).double(), dim=-1).numpy())
                on_epoch()

        trainer.on_epoch = predict
        return LabeledBags(own, self.label[self.part], own_order=self._order)

    def train_alone(self, on_epoch: Callable[[], None] = lambda: None) -> None:
        """Train without the others, on bags that the model has prepared."""
        prepare = self.trainer.stages[-1].model.prepare
        bags = [prepare(bag) for bag in self.bags.stream(range(len(self.bags)))]
        self.trainer.fit(self.start(BagList(bags), BagList([bags[i] for i in self.part]), on_epoch), None)

    def _order(self, epoch: int) -> list[int]:
        """The training bags in the order of all bags in an epoch, which is the same for every part."""
        position = {int(bag): i for i, bag in enumerate(self.part)}
        drawn = np.random.default_rng([self.order_seed, epoch]).permutation(len(self.label)).tolist()
        return [position[bag] for bag in drawn if bag in position]
