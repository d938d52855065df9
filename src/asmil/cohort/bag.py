"""A bag: the tiles of one slide (or of one patient's slides), as features with coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asmil.cohort.coordinates import refuse_wrong_coords
from asmil.cohort.source import LOWRES
from asmil.errors import AsmilError

COORDS_UM = "coords_um"
"""Key of the extras with the corners of the tiles in microns (N x 2), for slides with an unknown pixel size."""
LARGEST_FEATURE = 1e15
"""Models compute in float32 (up to 3e38), in which the sum of squares of a million larger values overflows."""


@dataclass(slots=True)
class Bag:
    """The tiles of one slide. A bag is validated when it is created, so every existing bag is valid.

    features: N x D, any floating type (files contain float16; models compute in their own type). They are finite in
    float32 and at most LARGEST_FEATURE, so that a layer of a model does not overflow
    coords: N x 2, top-left corners (x, y) in level-0 pixels, or None if unknown
    slide_index: N, the slide of each tile, for patients whose slides were joined
    extras: parameter-free additions (clusters, neighbors, low-resolution tiles)
    mask: N, false for padding rows; None: every row is a tile. Models whose `padding_from` allows padding give such
        rows the score minus infinity
    offset: C numbers that are added to the logits of a model for this bag (the term of its covariates), or None
    """

    features: Tensor
    coords: Tensor | None = None
    id: str = "bag"
    slide_index: Tensor | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    mask: Tensor | None = None
    offset: Tensor | None = None
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

    @property
    def places(self) -> Tensor | None:
        """Tile positions for computing distances, N x 2: in pixels, or in microns if only those are known."""
        return self.coords if self.coords is not None else self.extras.get(COORDS_UM)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Bag:
        """The same bag on another device; `dtype` converts the features."""
        return replace(
            self,
            features=self.features.to(device=device, dtype=dtype, non_blocking=True),
            coords=None if self.coords is None else self.coords.to(device, non_blocking=True),
            slide_index=None if self.slide_index is None else self.slide_index.to(device),
            extras={name: _moved(value, device) for name, value in self.extras.items()},
            mask=None if self.mask is None else self.mask.to(device, non_blocking=True),
            offset=None if self.offset is None else self.offset.to(device, non_blocking=True),
        )

    def subset(self, tiles: Tensor) -> Bag:
        """The bag of the given tiles (indices), in this order; only the extras that come from a file are kept."""
        extras: dict[str, Any] = {}
        if LOWRES in self.extras:
            # without those that do not belong to single tiles
            lowres = {name: values for name, values in self.extras[LOWRES].items() if len(values) == len(self)}
            extras[LOWRES] = {name: values[tiles] for name, values in lowres.items()}
        if COORDS_UM in self.extras:
            extras[COORDS_UM] = self.extras[COORDS_UM][tiles]
        return replace(
            self,
            features=self.features[tiles],
            coords=None if self.coords is None else self.coords[tiles],
            slide_index=None if self.slide_index is None else self.slide_index[tiles],
            extras=extras,
            mask=None if self.mask is None else self.mask[tiles],
        )

    @staticmethod
    def collate(bags: Sequence[Bag], length: int | None = None) -> PaddedBags:
        """Several bags as one batch, for `model.run_batch`; also as `collate_fn` of a torch `DataLoader`.

        length: number of rows per bag; by default that of the longest bag
        """
        sizes = [len(bag) for bag in bags]
        if not bags:
            raise AsmilError("a batch needs at least one bag")
        longest = max(sizes)
        if length is not None and length < longest:
            raise AsmilError(f"length = {length} is too short for a bag of {longest} tiles")
        misfit = next((bag for bag in bags if bag.width != bags[0].width), None)
        if misfit is not None:
            raise AsmilError(
                f"{misfit.id}: its tiles have {misfit.width} features, but those of {bags[0].id} have {bags[0].width}; "
                "a batch needs features of one encoder"
            )
        first = bags[0].features
        features = first.new_zeros(len(bags), length or longest, bags[0].width)
        for row, bag in zip(features, bags, strict=True):
            row[: len(bag)] = bag.features
        rows = torch.arange(features.shape[1], device=first.device)
        mask = rows < torch.tensor(sizes, device=first.device).unsqueeze(1)
        return PaddedBags(features, mask, tuple(bag.id for bag in bags), tuple(sizes))


@dataclass(frozen=True)
class PaddedBags:
    """Bags of different lengths as one padded tensor.

    features: B x L x D, zeros after the tiles of a bag
    mask: B x L, true for tiles
    ids: the names of the bags
    sizes: their numbers of tiles
    """

    features: Tensor
    mask: Tensor
    ids: tuple[str, ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """D, the number of features of a tile."""
        return self.features.shape[2]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> PaddedBags:
        """The same batch on another device; `dtype` converts the features."""
        features = self.features.to(device=device, dtype=dtype, non_blocking=True)
        return replace(self, features=features, mask=self.mask.to(device, non_blocking=True))


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
    if features.is_complex():
        raise AsmilError(f"{bag.id}: features are complex numbers; a bag needs real ones")
    if not features.is_floating_point():
        bag.features = features = features.to(torch.float32)
    if not _is_within(features, LARGEST_FEATURE):
        _refuse_features(bag)
    if bag.slide_index is not None and bag.slide_index.shape[0] != n_tiles:
        raise AsmilError(f"{bag.id}: {bag.slide_index.shape[0]} slide indices for {n_tiles} tiles; they must match")
    for coords in (bag.coords, bag.extras.get(COORDS_UM)):
        if coords is not None:
            refuse_wrong_coords(bag.id, coords.detach().double().cpu().numpy(), n_tiles)


def _refuse_features(bag: Bag) -> None:
    """Raise for tiles whose features are not finite, or too large to compute with."""
    n_tiles, features = len(bag), bag.features
    broken = torch.nonzero(~torch.isfinite(features).all(dim=1)).flatten()
    if len(broken):
        raise AsmilError(
            f"{bag.id}: {len(broken)} of {n_tiles} tiles have NaN or infinite features "
            f"(first: tile {int(broken[0])}); extract this slide again or leave it out"
        )
    sizes = features.detach().abs()
    large = torch.nonzero((sizes > LARGEST_FEATURE).any(dim=1)).flatten()
    raise AsmilError(
        f"{bag.id}: {len(large)} of {n_tiles} tiles have features up to {float(sizes.max()):.3g} (first: tile "
        f"{int(large[0])}), which overflow in a model; the limit is {LARGEST_FEATURE:g}; extract this slide again or "
        "leave it out"
    )


def _is_within(values: Tensor, largest: float) -> bool:
    """Whether all values are numbers from -largest to largest; NaN is not."""
    low, high = torch.aminmax(values.detach())
    # compare as Python numbers: in float16 the limit itself would be infinite
    return float(low) >= -largest and float(high) <= largest
