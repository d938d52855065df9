"""One slide to be done, and what is told of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SlideJob:
    """A slide and the feature file that it becomes. mpp: the user's value, None to read it from the file."""

    name: str
    path: Path
    mpp: float | None
    features: Path
    picture: Path | None


@dataclass(frozen=True)
class SlideReport:
    """How a slide went. notes: what its owner should look at."""

    n_tiles: int
    tissue_share: float
    seconds: float
    notes: tuple[str, ...]
