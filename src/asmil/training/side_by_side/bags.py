"""The bags of trainings side by side: each is held once, also if the trainings standardize features differently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.resident import keys_of


class NotSideBySide(Exception):
    """These trainings cannot run side by side; the message explains why."""


@dataclass(frozen=True)
class StandardizedBags:
    """Bags in memory, as a source: a training sees their features as `(x - center) / scale`.

    features: N_i x D each; trainings that share bags give the same list
    indices: the bags of this source, as indices of `features`
    center, scale: D each; an infinite scale sets a column to 0
    """

    features: Sequence[Tensor]
    indices: Sequence[int]
    center: Tensor
    scale: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        """The bags at these positions of `indices`."""
        for i in order:
            features = standardized(self.features[self.indices[i]], self.center, self.scale)
            yield Bag(features, id=f"bag {self.indices[i]}")

    def chosen(self, indices: Sequence[int]) -> StandardizedBags:
        """Some of the bags, by their indices in `features`."""
        return replace(self, indices=indices)

    def keys(self) -> list[Hashable]:
        """The same key for the same bag, in every source of the same list."""
        return [(id(self.features), int(index)) for index in self.indices]


def standardized(features: Tensor, center: Tensor, scale: Tensor) -> Tensor:
    """The features of a bag, standardized for a training."""
    return (features - center) / scale


class CommonBags:
    """The bags of R trainings on the device, by key.

    features: N x D of each bag, before standardization
    targets: the class of each training bag, 1
    scaling: centers and scales, R x D each; None if the trainings use the features as they are
    """

    def __init__(self, train: Sequence[LabeledBags], device: torch.device) -> None:
        self.device = device
        self.features: dict[Hashable, Tensor] = {}
        self.targets: dict[Hashable, Tensor] = {}
        self.scaling: tuple[Tensor, Tensor] | None = None
        scaled = [part.bags for part in train if isinstance(part.bags, StandardizedBags)]
        if scaled and len(scaled) < len(train):
            raise NotSideBySide("some of the trainings standardize their features, and some do not")
        if scaled:
            centers = torch.stack([source.center for source in scaled])
            self.scaling = (centers.to(device), torch.stack([source.scale for source in scaled]).to(device))
        for part in train:
            self.add(part.bags)
            for key, target in zip(keys_of(part.bags), torch.as_tensor(part.targets).to(device), strict=True):
                if not torch.equal(self.targets.setdefault(key, target.reshape(1)), target.reshape(1)):
                    raise NotSideBySide("a bag has different targets in different trainings")

    def add(self, source: BagSource) -> None:
        """Hold the bags of a source that are not held yet."""
        keys = keys_of(source)
        missing = [i for i, key in enumerate(keys) if key not in self.features]
        if isinstance(source, StandardizedBags):
            arrived: Iterator[Tensor] = (source.features[source.indices[i]] for i in missing)
        else:
            arrived = (bag.features for bag in source.stream(missing))
        for i, features in zip(missing, arrived, strict=True):
            self.features[keys[i]] = features.to(self.device, torch.float32)


def common_steps(orders: Sequence[Sequence[Hashable]]) -> Iterator[tuple[Hashable, list[int]]]:
    """Steps that take every training through its order of bags: a bag, and the trainings that take it in this step.

    If all orders are parts of one common order, each bag needs one step. Otherwise a bag needs several.

    >>> list(common_steps([["a", "b", "c"], ["a", "c"], ["b", "c"]]))
    [('a', [0, 1]), ('b', [0, 2]), ('c', [0, 1, 2])]
    """
    position = [0] * len(orders)
    remaining = Counter(key for order in orders for key in order)
    while remaining.total():
        waiting: dict[Hashable, list[int]] = {}
        for number, order in enumerate(orders):
            if position[number] < len(order):
                waiting.setdefault(order[position[number]], []).append(number)
        # a bag that all who need it are waiting for, or else the one that the largest share of them waits for
        key = max(waiting, key=lambda key: len(waiting[key]) / remaining[key])
        for number in waiting[key]:
            position[number] += 1
        remaining[key] -= len(waiting[key])
        yield key, waiting[key]
