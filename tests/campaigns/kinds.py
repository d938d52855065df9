"""The kinds of files that asmil reads: how a small valid one is made, and the public function that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    file: the one that is damaged, in the folder that `make` fills
    form: of the file, for edits of its structure (`edits.OF_FORM`); others only get other bytes
    make: writes the file, and what is read with it, into an empty folder, with the same bytes every time
    read: reads it as a verb does; what it returns is compared
    writes: reading changes the folder, which must be put back
    refused: asmil does not read this kind (yet); it must say so
    """

    name: str
    file: str
    form: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    writes: bool = False
    refused: bool = False


def all_kinds() -> dict[str, Kind]:
    """Every kind by its name."""
    from tests.campaigns import (
        classic_kinds,
        feature_kinds,
        run_kinds,
        score_kinds,
        slide_kinds,
        table_kinds,
        zarr_kinds,
    )

    modules = (feature_kinds, table_kinds, run_kinds, classic_kinds, slide_kinds, zarr_kinds, score_kinds)
    return {kind.name: kind for module in modules for kind in module.KINDS}
