"""The bags of trainings side by side: each is held once, also if the trainings standardize features differently."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.resident import ResidentBags


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
    """The bags of R trainings on the device; the columns after their D features are the `tile_tables` of the model.

    pool: the bags, before standardization
    scaling: centers and scales, R x D each; None if the trainings use the features as they are
    tables: all tiles x T, in the order of the pool
    """

    def __init__(self, pool: ResidentBags, train: Sequence[LabeledBags], model: MILModel) -> None:
        self.pool = pool
        self._model, self._table_names = model, model.tile_tables or ()
        self._table_of: dict[int, Tensor] = {}
        self.tables = torch.zeros(0, len(self._table_names), device=pool.device)
        self.scaling: tuple[Tensor, Tensor] | None = None
        scaled = [part.bags for part in train if isinstance(part.bags, StandardizedBags)]
        if scaled and len(scaled) < len(train):
            raise NotSideBySide("some of the trainings standardize their features, and some do not")
        if scaled and self._table_names:
            raise NotSideBySide("the method prepares its bags, and every training standardizes their features")
        if scaled:
            centers = torch.stack([source.center for source in scaled])
            scales = torch.stack([source.scale for source in scaled])
            self.scaling = (centers.to(pool.device), scales.to(pool.device))
        for part in train:
            self.numbers(part.bags)

    def numbers(self, source: BagSource) -> list[int]:
        """The numbers of the bags of a source in the pool, where they are added if they are missing."""
        stored = _Unscaled(source) if isinstance(source, StandardizedBags) else source
        self.pool.add(stored)
        numbers = self.pool.numbers(stored)
        if self._table_names:
            self._add_tables(stored, numbers)
        return numbers

    def _add_tables(self, source: BagSource, numbers: Sequence[int]) -> None:
        missing = [i for i, number in enumerate(numbers) if number not in self._table_of]
        for i, bag in zip(missing, source.stream(missing), strict=True):
            extras = self._model.prepare(bag).extras
            absent = next((name for name in self._table_names if name not in extras), None)
            if absent is not None:
                raise NotSideBySide(f"{bag.id} has no {absent}")
            columns = [torch.as_tensor(extras[name]).float() for name in self._table_names]
            self._table_of[numbers[i]] = torch.stack(columns, dim=1).to(self.tables)
        if len(self.tables) < len(self.pool.features) or missing:
            nothing = [self.tables.new_zeros(size, len(self._table_names)) for size in self.pool.sizes]
            self.tables = torch.cat([self._table_of.get(number, zeros) for number, zeros in enumerate(nothing)])

    def alone(self, number: int, training: int) -> Tensor:
        """The features of a bag as a training sees them, N x (D + T)."""
        features = self.pool.bag(number).features.float()
        if self.scaling is not None:
            return standardized(features, *(part[training] for part in self.scaling))
        return torch.cat([features, self._table_of[number]], dim=1) if self._table_names else features

    def together(
        self, numbers: Tensor, rows: int, trainings: Tensor | None, *, padded: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Features, n x ... x rows x (D + T), and which rows are tiles; None if the bags have exactly this many rows.

        numbers: n x ..., the bags of each of n trainings
        trainings: n, these trainings; None: all
        """
        pool, row = self.pool, torch.arange(rows, device=self.pool.device)
        features = rows_of(pool.features, pool.offsets, numbers, rows).float()
        if self._table_names:
            features = torch.cat([features, rows_of(self.tables, pool.offsets, numbers, rows)], dim=-1)
        if self.scaling is not None:
            center, scale = (part if trainings is None else part[trainings] for part in self.scaling)
            between = (len(numbers), *(1,) * numbers.ndim, -1)
            features = standardized(features, center.view(between), scale.view(between))
        return features, row < pool.lengths[numbers].unsqueeze(-1) if padded else None


def rows_of(stored: Tensor, offsets: Tensor, numbers: Tensor, rows: int) -> Tensor:
    """The first rows of some bags, ... x rows x D; the padding is whatever follows: any finite numbers will do."""
    row = torch.arange(rows, device=stored.device)
    return stored[(offsets[numbers].unsqueeze(-1) + row).clamp_(max=len(stored) - 1)]


@dataclass(frozen=True)
class _Unscaled:
    """Standardized bags as they are stored."""

    source: StandardizedBags

    def __len__(self) -> int:
        return len(self.source)

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        for i in order:
            yield Bag(self.source.features[self.source.indices[i]], id=f"bag {self.source.indices[i]}", validated=True)

    def keys(self) -> list[Hashable]:
        return self.source.keys()
