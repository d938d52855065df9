"""Size and state of what features are stored in: a file, or a pack."""

from __future__ import annotations

import os
from pathlib import Path

from asmil.cohort.pack_index import OWN_FILES, index_state, is_pack
from asmil.cohort.problems import fail


def source_state(path: Path) -> tuple[int, int]:
    """Size and time of change; a file rewritten since, or a pack written to, has others."""
    if is_pack(path) and (states := index_state(path)):
        return sum(size for _, size, _ in states), max(changed for _, _, changed in states)
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        fail(path, "the feature file does not exist", "correct its path or extract the slide")
    return stat.st_size, stat.st_mtime_ns


def stored_bytes(path: Path) -> int:
    """Bytes on disk."""
    if is_pack(path):
        return sum(file.stat().st_size for file in path.iterdir() if file.name in OWN_FILES)
    return path.stat().st_size
