"""Dealing the tiles of a bag into pseudo-bags."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.blocks.exporting import warn_of_fixed_size
from asmil.models.blocks.randomness import RandomModule

PSEUDO_BAGS = "pseudo_bags"
"""The extras of a bag that hold a split: N numbers, tiles with the same number are together."""


class PseudoBags(RandomModule):
    """Which pseudo-bag each tile of a bag is in (N numbers from 0), and how many pseudo-bags there are.

    In training dealt at random; otherwise by the name and size of the bag and the number of the repeat, whatever else
    was drawn before. A split that the bag brings with it is taken as it is.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, bag: Bag, repeat: int = 0) -> tuple[Tensor, int]:
        if PSEUDO_BAGS in bag.extras:
            return _given(bag)
        warn_of_fixed_size("its tiles are dealt into pseudo-bags by a permutation of their number")
        n_tiles = len(bag)
        groups = min(self.groups, n_tiles)
        if self.training:
            order = self.uniform((n_tiles,), bag.features).argsort()
        else:
            digest = hashlib.sha256(f"{bag.id}/{n_tiles}/{repeat}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
            order = torch.randperm(n_tiles, generator=generator).to(bag.features.device)
        return deal(order, groups), groups


def deal(order: Tensor, groups: int) -> Tensor:
    """The pseudo-bag of each tile, when the tiles in this order are cut into `groups` runs.

    The sizes differ by at most one, the larger runs first.
    """
    ids = torch.empty_like(order)
    for group, tiles in enumerate(order.tensor_split(groups)):
        ids[tiles] = group
    return ids


def _given(bag: Bag) -> tuple[Tensor, int]:
    given = torch.as_tensor(bag.extras[PSEUDO_BAGS], device=bag.features.device)
    if given.shape != (len(bag),):
        raise AsmilError(
            f"{bag.id}: its pseudo_bags have shape {tuple(given.shape)}; give one number for each of {len(bag)} tiles"
        )
    groups, ids = torch.unique(given, return_inverse=True)
    return ids, len(groups)
