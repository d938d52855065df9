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
