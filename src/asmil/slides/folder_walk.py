"""Walking through a folder and its subfolders, through links as well, but into every folder only once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def walk_once(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """(folder, names of subfolders, names of files) as `os.walk` gives them; taking subfolders away leaves them out."""
    seen = set()
    for place, subfolders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        itself = here.stat()
        if (itself.st_dev, itself.st_ino) in seen:
            subfolders.clear()  # a link back to a folder above
            continue
        seen.add((itself.st_dev, itself.st_ino))
        yield here, subfolders, names
