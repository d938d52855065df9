"""What the loop trains on: a source of bags, and their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asmil.cohort.bag import Bag


class BagSource(Protocol):
    """Bags by index; `stream` gives them in the order asked for and may read ahead."""

    def __len__(self) -> int: ...

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        """The bags with these indices, in this order."""
        ...


@dataclass(frozen=True)
class LabeledBags:
    """Bags with their targets (class indices)."""

    bags: BagSource
    targets: npt.NDArray[np.int64]

    def order(self, draw: np.random.Generator, balanced: bool) -> list[int]:
        """The bags of an epoch: all once, or as many drawn with replacement, every class equally likely."""
        if balanced:
            share = 1 / np.bincount(self.targets)[self.targets]
            return [int(i) for i in draw.choice(len(self.targets), size=len(self.targets), p=share / share.sum())]
        return [int(i) for i in draw.permutation(len(self.targets))]
