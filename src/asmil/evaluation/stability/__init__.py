"""Attention during training: movement, concentration, agreement between seeds, and alarms."""

from __future__ import annotations

from asmil.evaluation.stability.alarms import Alarm
from asmil.evaluation.stability.analysis import (
    RunStability,
    TrainingStability,
    read_stability,
    seed_agreement,
    summary_of,
    write_tables,
)

__all__ = [
    "Alarm",
    "RunStability",
    "TrainingStability",
    "read_stability",
    "seed_agreement",
    "summary_of",
    "write_tables",
]
