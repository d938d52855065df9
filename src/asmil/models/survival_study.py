"""How the survival baselines of VLSA (Liu et al., 2025) were trained, which several methods have as a preset."""

from __future__ import annotations

from typing import Any

TRAINING: dict[str, Any] = {
    "lr": 2e-4,
    "weight_decay": 1e-5,
    "epochs": 10,
    "schedule": "constant",
    "accumulate": 32,
    "select": "last",
}
