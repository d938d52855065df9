"""Attributes of HDF5 files as Python values, whatever a tool made of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """An attribute as a Python value; tools store None as the text 'None'."""
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0] if value.size == 1 else value.tolist()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, str) and value == "None" else value


def text(value: Any) -> str | None:
    """An attribute as text, None if there is none."""
    value = plain(value)
    return None if value is None else str(value)


def number(value: Any) -> float | None:
    """An attribute as a positive number (all that are read are sizes), None if it is none."""
    try:
        found = float(plain(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 < found < math.inf else None


def integer(value: Any) -> int | None:
    """An attribute as a whole number, None if it is none."""
    exact = number(value)
    return None if exact is None else round(exact)
