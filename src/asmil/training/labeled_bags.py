"""The data of the training loop: a source of bags, and their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from asmil.cohort.bag import Bag


class BagSource(Protocol):
    """Bags by index; `stream` returns them in a given order and may read ahead."""

    def __len__(self) -> int: ...

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        """The bags with these indices, in this order."""
        ...


@dataclass(frozen=True)
class BagList:
    """Bags in memory, as a source."""

    bags: Sequence[Bag]

    def __len__(self) -> int:
        return len(self.bags)

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        """The bags with these indices, in this order."""
        return (self.bags[i] for i in order)


@dataclass(frozen=True)
class LabeledBags:
    """Bags with their targets, in the form of the task.

    strata: the group of each bag (its class, whether it has an event, ...), for balanced sampling and recording;
        by default the targets, which must then be class indices
    stratum_names: the names of these groups
    weights: weight of the loss of each bag, 1 on average; None: all equal
    own_order: from the number of an epoch (from 0) to the order of its bags; None: drawn by the training
    """

    bags: BagSource
    targets: npt.NDArray[Any]
    strata: npt.NDArray[np.int64] | None = None
    stratum_names: tuple[str, ...] = ()
    weights: npt.NDArray[np.float64] | None = None
    own_order: Callable[[int], list[int]] | None = None

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """The stratum of every bag."""
        return self.targets if self.strata is None else self.strata

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the strata; their numbers if they have none."""
        return self.stratum_names or tuple(str(k) for k in range(int(self.groups.max(initial=0)) + 1))

    def order(self, draw: np.random.Generator, balanced: bool) -> list[int]:
        """The bags of an epoch: each once, or the same number drawn with replacement, all strata equally likely."""
        if balanced:
            share = 1 / np.bincount(self.groups)[self.groups]
            return [int(i) for i in draw.choice(len(self.groups), size=len(self.groups), p=share / share.sum())]
        return [int(i) for i in draw.permutation(len(self.groups))]
