"""Scores of other models for heat maps, and official weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file

from asmil.explain.score_files import find_scores, read_scores
from asmil.explain.tile_map import checked_values
from asmil.training.initial_weights import read_initial_weights
from tests.campaigns.contents import Aside
from tests.campaigns.kinds import Kind
from tests.cohort.feature_writers import grid

SCORES = np.linspace(0, 1, len(grid())).round(3)


def _table() -> pd.DataFrame:
    return pd.DataFrame(grid(), columns=["x", "y"]).assign(score=SCORES)


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["attention_scores"], file["coords"] = SCORES[:, None], grid()


def _scores(suffix: str, form: str, write: Callable[[Path], Any], empty_cells: bool = False) -> Kind:
    """empty_cells: a tile without a score is NaN in what is read"""
    file = f"s7{suffix}"

    def read(folder: Path) -> Any:
        found = read_scores(find_scores(folder, "s7"))
        values = checked_values("s7", found.values, len(grid()))
        known = values[~np.isnan(values)] if empty_cells else values
        return known, Aside(values), found.coords, found.name

    return Kind(f"scores {form}", file, form, lambda folder: write(folder / file), read)


def _weights() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = {"feature.0": (6, 8), "attention.0": (4, 6), "attention.2": (1, 4), "classifier.0": (2, 6)}
    state = {f"{name}.weight": torch.randn(size, generator=draw) for name, size in sizes.items()}
    return state | {f"{name}.bias": torch.randn(size[0], generator=draw) for name, size in sizes.items()}


def _official(suffix: str, form: str, write: Callable[[Path], Any]) -> Kind:
    file = f"weights{suffix}"

    def read(folder: Path) -> Any:
        found = read_initial_weights(folder / file)
        return found.method, found.in_features, found.model, dict(found.tensors)

    return Kind(f"official weights {suffix}", file, form, lambda folder: write(folder / file), read)


KINDS = (
    _scores(".npy", "npy", lambda path: np.save(path, SCORES)),
    _scores(".csv", "csv", lambda path: _table().to_csv(path, index=False), empty_cells=True),
    _scores(".parquet", "parquet", lambda path: _table().to_parquet(path, index=False), empty_cells=True),
    _scores(".h5", "hdf5", _hdf5),
    _official(".safetensors", "official", lambda path: save_file(_weights(), path)),
    _official(".pt", "torch", lambda path: torch.save(_weights(), path)),
)
