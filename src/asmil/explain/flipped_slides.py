"""The curves of one slide, and a folder that keeps them, so that an interrupted command can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from asmil.errors import AsmilError
from asmil.explain.flipping import Flipping
from asmil.files import write_text
from asmil.settings.documents import read_json
from asmil.settings.made_from import Record
from asmil.tables.names import file_in


@dataclass(frozen=True)
class FlippedSlide:
    """One slide (or patient): what was explained, and the curves of every order.

    shown: the probability of the explained class (or the risk, or the value) with all tiles
    """

    name: str
    patient: str
    explained: str
    shown: float
    n_tiles: int
    orders: Mapping[str, Flipping]
    random: tuple[Flipping, ...]


@dataclass(frozen=True)
class _StoredSlide(FlippedSlide):
    made_from: Record | None = None


@dataclass(frozen=True)
class FlippedSlides:
    """A folder with one JSON file per finished slide.

    Every file records what it was made from. A damaged file is not used: its slide is computed again.
    """

    folder: Path

    def read(self, name: str) -> tuple[FlippedSlide, Record | None] | None:
        """A finished slide and what it was made from; earlier versions did not record that."""
        path = file_in(self.folder, name, ".json")
        if not path.is_file():
            return None
        try:
            stored = read_json(path, _StoredSlide, "")
        except AsmilError:
            return None
        return (stored, stored.made_from) if stored.name == name else None

    def write(self, slide: FlippedSlide, made_from: Record) -> None:
        text = TypeAdapter(_StoredSlide).dump_json(_StoredSlide(**vars(slide), made_from=made_from)).decode()
        write_text(file_in(self.folder, slide.name, ".json"), text + "\n")
