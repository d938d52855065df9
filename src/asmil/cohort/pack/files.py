"""The files of a pack: their names, whether a folder is a pack, and the state of its index."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

PackDtype = Literal["float16", "float32"]
INDEX, JOURNAL, COORDS, LOWRES_FILE, LOCK = "index.json", "index.journal", "coords.i64", "lowres.u8", "lock"
FEATURE_FILES: dict[PackDtype, str] = {"float16": "features.f16", "float32": "features.f32"}
FEATURE_BYTES: dict[PackDtype, int] = {"float16": 2, "float32": 4}
COORD_BYTES = 8
OWN_FILES = frozenset((INDEX, JOURNAL, COORDS, LOWRES_FILE, LOCK, *FEATURE_FILES.values()))


def is_pack(path: Path) -> bool:
    """Whether a folder is a pack, finished or not: it has the data files of a pack."""
    # called for every slide, so without pathlib, which would take longer than the disk
    folder = os.fspath(path)
    return os.path.isdir(folder) and any(
        os.path.isfile(f"{folder}/{name}") for name in (*FEATURE_FILES.values(), COORDS)
    )


def file_states(folder: Path, *names: str) -> list[tuple[int, int, int]]:
    """Inode, size and modification time of those of the files that exist."""
    states = []
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError):
            stat = os.stat(f"{folder}/{name}")
            states.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return states
