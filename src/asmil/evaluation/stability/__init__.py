"""Attention over a training: how it moves, how concentrated it is, and when that should worry its owner."""

from __future__ import annotations

from asmil.evaluation.stability.alarms import Alarm, alarm_lines
from asmil.evaluation.stability.analysis import RunStability, TrainingStability, read_stability, seed_agreement
from asmil.evaluation.stability.tables import summary_of, write_tables

__all__ = [
    "Alarm",
    "RunStability",
    "TrainingStability",
    "alarm_lines",
    "read_stability",
    "seed_agreement",
    "summary_of",
    "write_tables",
]
