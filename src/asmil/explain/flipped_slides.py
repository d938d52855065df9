"""The curves of one slide, and a folder that keeps them, so that an interrupted measurement continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from asmil.documents import read_json
from asmil.errors import AsmilError
from asmil.explain.flipping import Flipping
from asmil.files import write_text
from asmil.names import file_in


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

    Every file notes what it was computed from. A file that was computed from something else, or that is damaged, is
    not used: its slide is computed again.
    """

    folder: Path

    def read(self, name: str, computed_from: str) -> FlippedSlide | None:
        """The slide, if it was computed from the same models, features and settings."""
        path = file_in(self.folder, name, ".json")
        if not path.is_file():
            return None
        try:
            stored = read_json(path, _Stored, "")
        except AsmilError:
            return None
        if stored.computed_from != computed_from or stored.name != name:
            return None
        orders = {kind: _curves(curves) for kind, curves in stored.orders.items()}
        random = tuple(map(_curves, stored.random))
        return FlippedSlide(name, stored.patient, stored.explained, stored.shown, stored.n_tiles, orders, random)

    def write(self, slide: FlippedSlide, computed_from: str) -> None:
        """Keep a finished slide."""
        stored = _Stored(
            computed_from=computed_from,
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


class _Stored(BaseModel, extra="forbid"):
    computed_from: str
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
