"""Made-up benchmark sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asmil.classic import BagSet, make_bag_set


@pytest.fixture
def toy() -> Callable[..., BagSet]:
    """Makes a set in which one instance of a positive bag lies higher in the first two of four features."""

    def make(name: str = "toy", n_bags: int = 24, n_features: int = 4, shift: float = 2.0, seed: int = 0) -> BagSet:
        draw = np.random.default_rng(seed)
        sizes = draw.integers(1, 6, n_bags)
        bag = np.repeat(np.arange(n_bags), sizes)
        label = np.arange(n_bags) % 2
        features = draw.normal(size=(len(bag), n_features)).round(3)
        features[np.cumsum(sizes) - 1, :2] += shift * label[:, None]
        return make_bag_set(Path(f"{name}.npz"), features, bag, label[bag])

    return make
