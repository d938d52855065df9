"""Weights and images by rule, so that two libraries can be compared by their outputs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SEED = 20261115


def draw_state(shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
    """A state dict; a tensor's values depend on its name's place in the sorted names, its name and its shape."""
    return {name: _draw(index, name, shapes[name]) for index, name in enumerate(sorted(shapes))}


def draw_images(n: int, rows_px: int, columns_px: int) -> NDArray[np.float32]:
    """Normalized images, n x 3 x rows x columns."""
    noise = np.random.default_rng([SEED, rows_px, columns_px]).standard_normal((n, 3, rows_px, columns_px))
    return noise.astype(np.float32)


def _draw(index: int, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
    noise = np.random.default_rng([SEED, index]).standard_normal(shape)
    if any(word in name for word in ("pos", "token", "class_embedding", "query")) and "attn" not in name:
        values = 0.5 * noise
    elif len(shape) < 2:
        is_gain = name.endswith((".weight", "gamma", "lambda1", "running_var"))
        values = (1.0 if is_gain else 0.0) + 0.1 * noise
    else:
        values = 1.5 / np.sqrt(np.prod(shape[1:])) * noise
    return values.astype(np.float32)
