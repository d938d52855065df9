"""One slide to extract, and its result."""

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
    """The result of a slide. notes: what the user should check."""

    n_tiles: int
    tissue_share: float
    seconds: float
    notes: tuple[str, ...]
