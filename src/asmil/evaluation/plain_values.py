"""Numbers as JSON takes them: what is undefined is None."""

from __future__ import annotations

import math
from typing import Any

from asmil.evaluation.bootstrap import Interval


def value_to_dict(value: float, interval: Interval) -> dict[str, Any]:
    """A value with its interval, ready for JSON."""
    return {"value": number_or_none(value), "low": number_or_none(interval.low), "high": number_or_none(interval.high)}


def number_or_none(value: float) -> float | None:
    """A number for JSON: None for what is undefined."""
    return float(value) if math.isfinite(value) else None
