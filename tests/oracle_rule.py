"""The rule that draws the weights and bags of oracle files, so that a file needs to store only the answers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SEED = 20261115


def _normal(key: int, shape: list[int] | tuple[int, ...]) -> np.ndarray:
    return np.random.Generator(np.random.PCG64([SEED, key])).standard_normal(shape)


def draw_tensor(index: int, name: str, shape: list[int]) -> Tensor:
    """The tensor at place `index` of a state dict: noise, scaled by what kind of tensor the name says it is."""
    noise = _normal(index, shape)
    leaf = name.split(".")[-1]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    if leaf == "running_var":
        values = 1.0 + 0.1 * np.abs(noise)
    elif leaf == "weight" and len(shape) == 1:
        values = 1.0 + 0.1 * noise
    elif len(shape) < 2:
        values = 0.1 * noise
    else:
        values = 1.5 / np.sqrt(max(int(np.prod(shape[1:])), 1)) * noise
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def draw_state(tensors: list[dict]) -> dict[str, Tensor]:
    """The state dict of an oracle's `tensors` list."""
    return {t["name"]: draw_tensor(i, t["name"], t["shape"]) for i, t in enumerate(tensors)}


def draw_bag(n: int, d: int, key: int = 0) -> Tensor:
    """The features of an oracle's bag."""
    return torch.from_numpy(_normal(1_000_000 + key, (n, d)).astype(np.float32))
