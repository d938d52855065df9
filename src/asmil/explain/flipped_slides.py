"""The curves of one slide, and a folder that keeps them, so that an interrupted measurement continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel

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
            stored = read_json(path, _Stored, "")
        except AsmilError:
            return None
        if stored.name != name:
            return None
        orders = {kind: _curves(curves) for kind, curves in stored.orders.items()}
        random = tuple(map(_curves, stored.random))
        slide = FlippedSlide(name, stored.patient, stored.explained, stored.shown, stored.n_tiles, orders, random)
        return slide, stored.made_from

    def write(self, slide: FlippedSlide, made_from: Record) -> None:
        """Keep a finished slide."""
        stored = _Stored(
            made_from=made_from,
            name=slide.name,
            patient=slide.patient,
            explained=slide.explained,
            shown=slide.shown,
            n_tiles=slide.n_tiles,
            orders={kind: _lists(flipping) for kind, flipping in slide.orders.items()},
            random=[_lists(flipping) for flipping in slide.random],
        )
        write_text(file_in(self.folder, slide.name, ".json"), stored.model_dump_json() + "\n")


class _Curves(BaseModel, extra="forbid"):
    removed: list[float]
    most_first: list[float]
    least_first: list[float]
    most_first_shown: list[float]
    least_first_shown: list[float]


class _Stored(BaseModel):
    made_from: Record | None = None
    name: str
    patient: str
    explained: str
    shown: float
    n_tiles: int
    orders: dict[str, _Curves]
    random: list[_Curves]


def _lists(flipping: Flipping) -> _Curves:
    return _Curves(**{name: values.tolist() for name, values in asdict(flipping).items()})


def _curves(stored: _Curves) -> Flipping:
    return Flipping(**{name: np.array(values) for name, values in stored})
