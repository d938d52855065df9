"""The content of an annotation file: regions with a class, as shapes in level-0 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import shapely
from shapely.geometry import MultiPolygon, Polygon
from shapely.geometry.base import BaseGeometry

from asmil.errors import AsmilError
from asmil.reporting.formats import format_count
from asmil.slides.tissue.geojson import polygons_of
from asmil.tables.arrays import Floats

Kind = Literal["asap", "aperio", "geojson", "ncrf", "trident"]
Ring = Floats
SMALLEST_RING = 3
MOST_PIXELS = 1e8
"""No slide is this wide: larger coordinates are damaged, and their shapes cannot be joined."""
MOST_CROSSINGS = 1_000
"""Of one outline: repairing as many takes about a second, and four times as many ten seconds. Drawn ones have a few."""
FEW_CROSSINGS, MOST_CROSSINGS_OF_FILE = 10, 5_000
"""Outlines with few crossings are repaired in any number; of the others, the crossings are added up."""
PAIRS_AT_ONCE, FEWEST_AT_ONCE = 200_000, 4
"""The pairs of segments that are compared between two checks of the count, and the fewest segments for that."""


@dataclass(frozen=True)
class AnnotatedRegion:
    """One annotated region.

    group: its class (ASAP: group, QuPath: classification, Aperio: layer); None if it has none
    cut_out: whether the tool marks it as a hole in the others
    """

    group: str | None
    shape: MultiPolygon
    cut_out: bool = False


@dataclass(frozen=True)
class Annotations:
    """The regions of a file, and notes on what was left out or repaired."""

    path: Path
    kind: Kind
    regions: tuple[AnnotatedRegion, ...]
    notes: tuple[str, ...] = ()


class Collector:
    """Collects the regions of a file while it is read, and counts what was left out or repaired."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self._path = path
        self._kind: Kind = kind
        self.regions: list[AnnotatedRegion] = []
        self._left_out: dict[str, int] = {}
        self._added = 0
        self._repaired = 0
        self._crossings = 0

    def add(self, rings: Sequence[Ring], group: str | None, cut_out: bool = False) -> None:
        """Add a region: its outline first, then its holes, each N x 2."""
        self._added += 1
        for ring in rings:
            self._refuse_strange(ring)
        if not rings or len(rings[0]) < SMALLEST_RING:
            return self.leave_out("with fewer than three points")
        drawn = Polygon(rings[0], [ring for ring in rings[1:] if len(ring) >= SMALLEST_RING])
        if not drawn.is_valid:
            self._refuse_tangled(drawn, group)
            self._repaired += 1
        shape = area_of(drawn)
        if shape.is_empty:
            return self.leave_out("without area")
        self.regions.append(AnnotatedRegion(group, shape, cut_out))
        return None

    def _refuse_strange(self, ring: Ring) -> None:
        if ring.ndim != 2 or ring.shape[1] != 2:
            raise AsmilError(f"{self._path}: an outline is not a list of points (x, y); export the annotations again")
        if not (np.abs(ring) <= MOST_PIXELS).all():  # false for nan, too
            raise AsmilError(
                f"{self._path}: a coordinate is invalid (not finite, or beyond {MOST_PIXELS:g}); export "
                "the annotations again"
            )

    def _refuse_tangled(self, drawn: Polygon, group: str | None) -> None:
        """Refuse an outline whose repair would take minutes."""
        crossings = count_crossings(drawn, MOST_CROSSINGS)
        self._crossings += crossings if crossings > FEW_CROSSINGS else 0
        if crossings <= MOST_CROSSINGS and self._crossings <= MOST_CROSSINGS_OF_FILE:
            return
        times = f"more than {MOST_CROSSINGS:,} times"
        if crossings <= MOST_CROSSINGS:
            times = f"{crossings} times, and all outlines together more than {MOST_CROSSINGS_OF_FILE:,} times"
        x, y = drawn.exterior.coords[0]
        raise AsmilError(
            f"{self._path}: outline {self._added} ({group or 'without a class'}, at x = {x:.0f}, y = {y:.0f}) crosses "
            f"itself {times}, too often to be repaired; draw it again, or save it as valid polygons in the "
            "tool that made it"
        )

    def leave_out(self, why: str) -> None:
        """Count something that is not a region."""
        self._left_out[why] = self._left_out.get(why, 0) + 1

    def finish(self) -> Annotations:
        """The collected regions and notes."""
        notes = [f"{format_count(count, 'annotation')} {why} left out" for why, count in self._left_out.items()]
        if self._repaired:
            notes.append(f"{format_count(self._repaired, 'annotation')} with a self-crossing outline repaired")
        return Annotations(self._path, self._kind, tuple(self.regions), tuple(notes))


def area_of(shape: BaseGeometry) -> MultiPolygon:
    """The parts of a shape that have an area, see `polygons_of`; empty if there are none."""
    return MultiPolygon(polygons_of(shape))


def count_crossings(polygon: Polygon, most: int) -> int:
    """The pairs of segments of all rings that cross, touch or overlap, except neighbors; the count ends beyond `most`.

    >>> count_crossings(Polygon([(0, 0), (1, 1), (1, 0), (0, 1)]), most=9)
    1
    """
    rings = [shapely.get_coordinates(ring) for ring in (polygon.exterior, *polygon.interiors)]
    parts = [np.stack([ring[:-1], ring[1:]], axis=1) for ring in rings]
    parts = [part[moves] for part in parts if (moves := (part[:, 0] != part[:, 1]).any(axis=1)).any()]
    if not parts:
        return 0
    segments = shapely.linestrings(np.concatenate(parts))
    ends = np.cumsum([len(part) for part in parts])
    follower = np.arange(1, len(segments) + 1)
    follower[ends - 1] = np.concatenate([[0], ends[:-1]])
    tree = shapely.STRtree(segments)
    step = max(FEWEST_AT_ONCE, PAIRS_AT_ONCE // len(segments))
    crossings = 0
    for start in range(0, len(segments), step):
        first, second = tree.query(segments[start : start + step], predicate="intersects")
        first = first + start
        once = first < second
        first, second = first[once], second[once]
        crossings += int(np.count_nonzero((follower[first] != second) & (follower[second] != first)))
        if crossings > most:
            break
    return crossings
