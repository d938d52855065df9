"""A bag: the tiles of one slide (or of one patient's slides), as features with coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asmil.errors import AsmilError

LOWRES, LOWRES_TILES = "lowres", "tiles"
"""The extras that a feature file holds itself: its `tiles` are of low magnification, one a tile, in the same order."""


@dataclass(slots=True)
class Bag:
    """The tiles of one slide. Built once, at the border: a bag that exists is a valid bag.

    features: N x D, any floating type (files hold float16; models compute in their own type)
    coords: N x 2, top-left corners (x, y) in level-0 pixels, or None when unknown
    slide_index: N, which slide a tile is of, for patients whose slides were joined
    extras: parameter-free additions (clusters, neighbours, low-resolution tiles)
    """

    features: Tensor
    coords: Tensor | None = None
    id: str = "bag"
    slide_index: Tensor | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    validated: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.validated:
            return
        self.features = _as_tensor(self.features)
        if self.coords is not None:
            self.coords = _as_tensor(self.coords)
        _refuse_invalid(self)
        self.validated = True

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def width(self) -> int:
        """D, the number of features of a tile."""
        return self.features.shape[1]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Bag:
        """The same bag on another device; `dtype` converts the features."""
        return replace(
            self,
            features=self.features.to(device=device, dtype=dtype, non_blocking=True),
            coords=None if self.coords is None else self.coords.to(device, non_blocking=True),
            slide_index=None if self.slide_index is None else self.slide_index.to(device),
            extras={name: _moved(value, device) for name, value in self.extras.items()},
        )

    def subset(self, tiles: Tensor) -> Bag:
        """The bag of the given tiles (indices), in that order; of the extras only low-magnification tiles stay."""
        return replace(
            self,
            features=self.features[tiles],
            coords=None if self.coords is None else self.coords[tiles],
            slide_index=None if self.slide_index is None else self.slide_index[tiles],
            extras={LOWRES: self._chosen_lowres(tiles)} if LOWRES in self.extras else {},
        )

    def _chosen_lowres(self, tiles: Tensor) -> dict[str, Tensor]:
        """Of the given tiles; what does not belong to single tiles is left out."""
        lowres: Mapping[str, Tensor] = self.extras[LOWRES]
        return {name: values[tiles] for name, values in lowres.items() if len(values) == len(self)}


def _moved(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Mapping):
        return {name: _moved(part, device) for name, part in value.items()}
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()
    return torch.as_tensor(values)


def _refuse_invalid(bag: Bag) -> None:
    features = bag.features
    if features.ndim != 2:
        raise AsmilError(f"{bag.id}: features have shape {tuple(features.shape)}; a bag needs N x D (tiles x features)")
    n_tiles, width = features.shape
    if n_tiles == 0:
        raise AsmilError(f"{bag.id}: the bag has no tiles; leave this slide out or extract its features again")
    if width == 0:
        raise AsmilError(f"{bag.id}: the tiles have no features (shape {n_tiles} x 0)")
    if not features.is_floating_point():
        bag.features = features = features.to(torch.float32)
    if not bool(torch.isfinite(features.sum(dtype=torch.float32))):
        finite = torch.isfinite(features).all(dim=1)
        if not bool(finite.all()):
            broken = torch.nonzero(~finite).flatten()
            raise AsmilError(
                f"{bag.id}: {len(broken)} of {n_tiles} tiles hold NaN or infinite features "
                f"(first: tile {int(broken[0])}); extract this slide again or leave it out"
            )
    for name, values in (("coordinates", bag.coords), ("slide indices", bag.slide_index)):
        if values is not None and values.shape[0] != n_tiles:
            raise AsmilError(f"{bag.id}: {values.shape[0]} {name} for {n_tiles} tiles; they must match")
    if bag.coords is not None and (bag.coords.ndim != 2 or bag.coords.shape[1] != 2):
        raise AsmilError(f"{bag.id}: coordinates have shape {tuple(bag.coords.shape)}; they must be N x 2 (x, y)")
