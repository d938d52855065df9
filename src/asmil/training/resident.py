"""The features of many bags on the device, in one pool."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.machine.memory import gpu_part, how_many_fit
from asmil.training.labeled_bags import BagSource


class ResidentBags:
    """Bags by number, each with its rows in the pool; adding more copies the pool.

    features: all tiles x D
    offsets, lengths: the first row and the number of rows of each bag
    targets: class index of each bag, set by `set_targets`
    """

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        self.features = torch.empty(0, width, device=device, dtype=dtype)
        self.offsets = torch.zeros(0, device=device, dtype=torch.int64)
        self.lengths = torch.zeros(0, device=device, dtype=torch.int32)
        self.targets = torch.zeros(0, device=device, dtype=torch.int32)
        self.sizes: list[int] = []
        self.names: list[str] = []
        self._starts: list[int] = []
        self._numbers: dict[Hashable, int] = {}

    def add(self, source: BagSource) -> None:
        """Add the bags of a source that are not in the pool yet."""
        keys = keys_of(source)
        missing = [i for i, key in enumerate(keys) if key not in self._numbers]
        if not missing:
            return
        arrived = []
        for i, bag in zip(missing, source.stream(missing), strict=True):
            self._numbers[keys[i]] = len(self.sizes)
            self.sizes.append(len(bag))
            self.names.append(bag.id)
            arrived.append(bag.features.to(self.features.device, self.features.dtype, non_blocking=True))
        self.features = torch.cat([self.features, *arrived])
        lengths = torch.tensor(self.sizes, dtype=torch.int64)
        device = self.features.device
        self.lengths = lengths.to(device, torch.int32)
        offsets = lengths.cumsum(0) - lengths
        self.offsets = offsets.to(device, torch.int64)
        self._starts = offsets.tolist()
        self.targets = torch.zeros(len(self.sizes), device=device, dtype=torch.int32)

    @property
    def device(self) -> torch.device:
        """The device of the features."""
        return self.features.device

    def bag(self, number: int) -> Bag:
        """One bag, whose features are a view of the pool."""
        first = self._starts[number]
        return Bag(self.features[first : first + self.sizes[number]], id=self.names[number], validated=True)

    def padded(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The features of some bags in float32, n x L x D, and which rows are tiles, n x L; other rows are finite."""
        wanted = torch.as_tensor(numbers, device=self.device)
        row = torch.arange(self.longest(numbers), device=self.device)
        rows = (self.offsets[wanted, None] + row).clamp_(max=len(self.features) - 1)
        return self.features[rows].float(), row < self.lengths[wanted, None]

    def numbers(self, source: BagSource) -> list[int]:
        """The numbers of the bags of an added source."""
        return [self._numbers[key] for key in keys_of(source)]

    def set_targets(self, numbers: Sequence[int], targets: npt.NDArray[np.int64]) -> None:
        """Set the class indices of some bags."""
        self.targets[torch.as_tensor(numbers)] = torch.as_tensor(targets).to(self.targets)

    def trainings_that_fit(self, bytes_each: int, most: int) -> int:
        """How many trainings fit into the memory of the device in addition to these bags; at least 1."""
        if self.device.type != "cuda":
            return most
        free, total = torch.cuda.mem_get_info(self.device)
        used = torch.cuda.memory_allocated(self.device)
        reusable = torch.cuda.memory_reserved(self.device) - used
        return how_many_fit(gpu_part(free + reusable, used, total), bytes_each, most)

    def longest(self, numbers: Sequence[int]) -> int:
        """The number of tiles of the longest of some bags."""
        return max(self.sizes[number] for number in numbers)


def keys_of(source: BagSource) -> list[Hashable]:
    """Unique identifiers of the bags of a source: its `keys`, or the source itself and a number."""
    keys = getattr(source, "keys", None)
    return list(keys()) if keys is not None else [(id(source), i) for i in range(len(source))]
