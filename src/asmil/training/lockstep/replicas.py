"""Replicas of one training on the same bags, trained side by side in a common order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.errors import AsmilError


@dataclass(frozen=True)
class Replica:
    """One of several trainings on the same bags.

    train: indices of its training bags
    center, scale: D each; the replica uses the features `(x - center) / scale` (an infinite scale makes a column 0)
    seed: seed of its initial weights and its random numbers
    """

    train: npt.NDArray[np.int64]
    center: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    seed: int


@dataclass(frozen=True)
class SharedBags:
    """The bags of all replicas.

    features: N_i x D float32 each, unscaled; targets: the class of each
    """

    features: list[Tensor]
    targets: npt.NDArray[np.int64]
    n_classes: int
    order_seed: int

    @property
    def width(self) -> int:
        """D, the number of features of a tile."""
        return self.features[0].shape[1]

    def __len__(self) -> int:
        return len(self.features)

    def order(self, epoch: int) -> list[int]:
        """All bags in the order of an epoch (from 0), the same for every replica."""
        return [int(i) for i in np.random.default_rng([self.order_seed, epoch]).permutation(len(self))]


def share_bags(
    bags: Sequence[Tensor], targets: npt.NDArray[np.int64] | Tensor, n_classes: int, order_seed: int
) -> SharedBags:
    """Check the bags and convert them for all replicas."""
    if len(bags) == 0 or len(bags) != len(targets):
        raise AsmilError(f"{len(bags)} bags and {len(targets)} targets; give one target per bag, and at least one bag")
    features = [torch.as_tensor(bag, dtype=torch.float32) for bag in bags]
    for number, bag in enumerate(features):
        if bag.ndim != 2 or len(bag) == 0 or bag.shape[1] != features[0].shape[-1]:
            raise AsmilError(
                f"bag {number} has the shape {tuple(bag.shape)}; all bags need tiles x {features[0].shape[-1]} features"
            )
        if not bool(torch.isfinite(bag).all()):
            raise AsmilError(f"bag {number} contains NaN or infinite features; leave it out or fix it")
    classes = np.asarray(targets, dtype=np.int64)
    if classes.min() < 0 or classes.max() >= n_classes:
        raise AsmilError(f"targets are between {classes.min()} and {classes.max()}; they must be 0 to {n_classes - 1}")
    return SharedBags(features, classes, n_classes, order_seed)


def refuse_misfits(replicas: Sequence[Replica], bags: SharedBags) -> None:
    """Raise unless every replica has training bags, and a center and a scale for every feature."""
    if not replicas:
        raise AsmilError("there are no replicas to train; give at least one")
    for number, replica in enumerate(replicas):
        train = np.asarray(replica.train)
        if train.ndim != 1 or len(train) == 0 or train.min() < 0 or train.max() >= len(bags):
            raise AsmilError(
                f"replica {number}: its training bags must be indices from 0 to {len(bags) - 1}, at least one"
            )
        if len(np.unique(train)) != len(train):
            raise AsmilError(f"replica {number}: a training bag is listed twice; list each bag once")
        for name, values in (("center", replica.center), ("scale", replica.scale)):
            if np.shape(values) != (bags.width,):
                raise AsmilError(
                    f"replica {number}: {name} has the shape {np.shape(values)}; it needs one value for each of "
                    f"{bags.width} features"
                )
        if not np.isfinite(replica.center).all() or np.isnan(replica.scale).any() or not np.all(replica.scale):
            raise AsmilError(
                f"replica {number}: center must be finite and scale not 0; give constant features the scale 1"
            )


def scaled(features: Tensor, center: Tensor, scale: Tensor) -> Tensor:
    """The features of a bag, scaled for a replica."""
    return (features - center) / scale
