"""The kinds of files that are no model's, one module each, told apart by what is in a file."""

from __future__ import annotations

from typing import Any

from oracles.sheet import Kind
from oracles.sheets import affine, froc, normalizers, statistics, survival, tiling

KINDS = (normalizers.KIND, affine.KIND, tiling.KIND, survival.KIND, statistics.KIND, froc.KIND)


def recognize(content: Any) -> Kind | None:
    """The kind of a file, or None if no kind knows it."""
    return next((kind for kind in KINDS if isinstance(content, dict) and kind.recognizes(content)), None)
