"""Attributes of HDF5 files as Python values, whatever a tool made of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """An attribute as a Python value; tools store None as the text 'None'."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, np.generic):
        value = value.item()
    return None if value == "None" else value


def number(value: Any) -> float | None:
    """An attribute as a number, None if it is none."""
    try:
        return float(plain(value))
    except (TypeError, ValueError):
        return None


def integer(value: Any) -> int | None:
    """An attribute as a whole number, None if it is none."""
    exact = number(value)
    return None if exact is None else round(exact)
