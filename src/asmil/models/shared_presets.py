"""How the authors of several methods trained them, for the presets of these methods."""

from __future__ import annotations

from typing import Any

VLSA_SURVIVAL: dict[str, Any] = {
    "lr": 2e-4,
    "weight_decay": 1e-5,
    "epochs": 10,
    "schedule": "constant",
    "accumulate": 32,
    "select": "last",
}
"""The survival baselines of VLSA (Liu et al., 2025)."""
MHIM_AND_R2T: dict[str, Any] = {
    "lr": 2e-4,
    "weight_decay": 1e-5,
    "epochs": 200,
    "early_stopping": 30,
    "early_stopping_from": 130,
}
"""MHIM and R2T (Tang et al., 2023 and 2024), which share their training script."""
