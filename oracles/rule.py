"""The rule that draws the weights and bags of oracle files, so that a file needs to store only the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SEED = 20261115
TILE_PX = 256


def _generator(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([SEED, key]))


def draw_tensor(index: int, name: str, shape: Sequence[int]) -> Tensor:
    """The tensor at place `index` of a state dict: noise, scaled by what kind of tensor the name says it is."""
    noise: npt.NDArray[np.float64] = np.asarray(_generator(index).standard_normal(tuple(shape)))
    leaf = name.split(".")[-1]
    if leaf == "num_batches_tracked":
        return torch.zeros(tuple(shape), dtype=torch.int64)
    if leaf == "running_var":
        values = 1.0 + 0.1 * np.abs(noise)
    elif leaf == "weight" and len(shape) == 1:
        values = 1.0 + 0.1 * noise
    elif len(shape) < 2:
        values = 0.1 * noise
    else:
        values = 1.5 / np.sqrt(max(int(np.prod(shape[1:])), 1)) * noise
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def draw_state(tensors: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The state dict of an oracle's `tensors` list."""
    return {t["name"]: draw_tensor(i, t["name"], t["shape"]) for i, t in enumerate(tensors)}


def draw_bag(n: int, d: int, key: int = 0) -> Tensor:
    """The features of an oracle's bag, n x d."""
    return torch.from_numpy(_generator(1_000_000 + key).standard_normal((n, d)).astype(np.float32))


def draw_grid(n: int) -> Tensor:
    """The coordinates of an oracle's bag: n tiles on a ragged grid, row by row, n x 2."""
    side = int(np.ceil(np.sqrt(1.3 * n)))
    cells = np.sort(_generator(2_000_000).permutation(side * side)[:n])
    return torch.from_numpy((np.stack([cells % side, cells // side], axis=1) * TILE_PX).astype(np.int64))
