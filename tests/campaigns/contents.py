"""What a reader returned: a digest that equal readings share, and whether all numbers are finite."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch


@dataclass(frozen=True)
class Aside:
    """Part of a reading in which NaN has a meaning, such as a metric that is undefined."""

    value: Any


def digest(value: Any) -> str:
    """A hash of all that a value holds; paths do not count."""
    found = hashlib.sha256()
    for leaf in _leaves(value, aside=True):
        if isinstance(leaf, np.ndarray):
            found.update(f"{leaf.dtype}{leaf.shape}".encode())
            found.update(repr(leaf.tolist()).encode() if leaf.dtype == object else np.ascontiguousarray(leaf).tobytes())
        else:
            found.update(repr(leaf).encode("utf-8", "surrogatepass") + b"\0")
    return found.hexdigest()


def is_finite(value: Any) -> bool:
    """Whether no number in a value is NaN or infinite."""
    for leaf in _leaves(value, aside=False):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
            return False
        if isinstance(leaf, float | np.floating) and not math.isfinite(leaf):
            return False
    return True


def _leaves(value: Any, aside: bool) -> Iterator[Any]:
    if isinstance(value, Aside):
        if aside:
            yield from _leaves(value.value, aside)
    elif isinstance(value, Path):
        return
    elif isinstance(value, torch.Tensor):
        yield value.detach().to_dense().float().numpy() if value.dtype == torch.bfloat16 else _array(value)
    elif isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, pd.DataFrame):
        for place, name in enumerate(value.columns):
            yield str(name)
            yield from _leaves(value.iloc[:, place].tolist(), aside)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.name
            yield from _leaves(getattr(value, field.name), aside)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _leaves(inner, aside)
    elif isinstance(value, set | frozenset):
        yield sorted(map(repr, value))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield len(value)
        for inner in value:
            yield from _leaves(inner, aside)
    elif value is None or isinstance(value, str | bytes | bool | int | float | np.generic):
        yield value
    else:
        yield type(value).__name__


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to_dense().resolve_conj().resolve_neg().numpy()
