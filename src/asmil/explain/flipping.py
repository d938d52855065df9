"""Patch flipping: tiles are removed in the order of a map, and the prediction is repeated.

A faithful map shows the tiles that the prediction depends on. Removing its highest tiles first (most relevant first, M)
must lower the prediction quickly, removing its lowest first (least relevant first, L) slowly. The area between both
curves over the share r of removed tiles,

    area = integral (L(r) - M(r)) dr / r_max,        r from 0 to r_max

is 0 on average for a random order, and positive for a map that explains the model. It needs no annotations: it
measures whether a map explains the model, not whether the model is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from asmil.errors import AsmilError
from asmil.files import write_text
from asmil.settings.documents import read_json
from asmil.settings.made_from import Record
from asmil.tables.arrays import Floats, Integers
from asmil.tables.names import file_in

Curve = Annotated[
    Floats,
    PlainValidator(lambda values: np.array(values, dtype=np.float64)),
    PlainSerializer(lambda curve: curve.tolist()),
]
"""Numbers over the shares of removed tiles; a list in JSON."""
Ask = Callable[[Integers, Sequence[int]], Floats]
"""The predictions after the first tiles of an order are removed, for several numbers of tiles: R x 2, the evidence, and
the same as it is shown to readers (a probability, a risk)."""

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of the tiles that are removed; closer at the start, where few tiles have a large effect."""


@dataclass(frozen=True)
class Flipping:
    """Both curves of one order: R values of `evidence` and `shown` for the removed shares R."""

    removed: Curve
    most_first: Curve
    least_first: Curve
    most_first_shown: Curve
    least_first_shown: Curve

    @property
    def area(self) -> float:
        """The area between the curves, as shown to readers."""
        return area_between(self.removed, self.least_first_shown, self.most_first_shown)

    @property
    def evidence_area(self) -> float:
        """The same in log-odds, which do not saturate where a probability is near 0 or 1."""
        return area_between(self.removed, self.least_first, self.most_first)


@dataclass(frozen=True)
class FlippedSlide:
    """One slide (or patient): what was explained, and the curves of every order.

    shown: the probability of the explained class (or the risk, or the value) with all tiles
    made_from: what a stored slide was computed from; earlier versions did not record that
    """

    name: str
    patient: str
    explained: str
    shown: float
    n_tiles: int
    orders: Mapping[str, Flipping]
    random: tuple[Flipping, ...]
    made_from: Record | None = None

    def write(self, folder: Path) -> None:
        """Store the slide as a JSON file, so that an interrupted command can be resumed."""
        text = TypeAdapter(FlippedSlide).dump_json(self).decode()
        write_text(file_in(folder, self.name, ".json"), text + "\n")


def read_flipped(folder: Path, name: str) -> FlippedSlide | None:
    """A stored slide; None if it is not finished, or if its file is damaged, so that it is computed again."""
    path = file_in(folder, name, ".json")
    try:
        stored = read_json(path, FlippedSlide, "") if path.is_file() else None
    except AsmilError:
        return None
    return stored if stored is not None and stored.name == name else None


def flip(relevance: npt.ArrayLike, ask: Ask, ties: Integers, shares: Sequence[float] = SHARES) -> Flipping:
    """Remove the tiles of a bag by their relevance, most and least relevant first.

    ties: a permutation of the tiles, which orders tiles of equal relevance, so that their order in a file has no effect
    """
    values = np.asarray(relevance, dtype=np.float64)
    order = ties[np.argsort(-values[ties], kind="stable")]
    counts = removed_counts(len(values), shares)
    (evidence_most, shown_most), (evidence_least, shown_least) = ask(order, counts).T, ask(order[::-1], counts).T
    removed = np.array(counts) / len(values)
    return Flipping(removed, evidence_most, evidence_least, shown_most, shown_least)


def removed_counts(n_tiles: int, shares: Sequence[float] = SHARES) -> list[int]:
    """How many tiles are removed at each share, each number once; at least one tile is left.

    >>> removed_counts(10, (0.0, 0.01, 0.5, 1.0))
    [0, 5, 9]
    """
    return sorted({min(round(share * n_tiles), n_tiles - 1) for share in shares})


def area_between(removed: Floats, upper: Floats, lower: Floats) -> float:
    """The mean of upper - lower over the removed share, by trapezoids; nan if no tile can be removed."""
    if len(removed) < 2:
        return float("nan")
    return float(np.trapezoid(upper - lower, removed) / (removed[-1] - removed[0]))
