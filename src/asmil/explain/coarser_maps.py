"""Maps at a lower magnification of the features: the value of a coarser tile is the mean over the tiles in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from asmil.cohort.open_features import OpenFeatures, Parents, info_of
from asmil.cohort.reader import open_features
from asmil.cohort.source import FeatureInfo
from asmil.errors import AsmilError
from asmil.explain.asked_slides import AskedSlide
from asmil.explain.slide_maps import SlideMaps
from asmil.slides.settings import NOMINAL_MPP
from asmil.tables.arrays import Floats, Integers

TOLERANCE = 0.05


def coarser_maps(shown: SlideMaps, asked: AskedSlide, magnification: float) -> SlideMaps:
    """The maps of a slide at one of the magnifications of its features.

    A mean, not a sum: the color scales keep their meaning, and tiles at the edge of the tissue are not paler because
    they contain fewer tiles. A tile in which no tile has a value has none.
    """
    if asked.slide is None:
        raise AsmilError(f"{asked.name}: --magnification needs its features; give their folder with --features")
    with open_features(asked.slide.source, mmap=True) as file:
        parents = _parents_at(asked.name, file, magnification)
        if parents is None:
            return shown
        corners, info = parents.file.read_coords(), info_of(parents.file)
    if shown.coords is None or len(shown.coords) != len(parents.rows) or corners is None:
        raise AsmilError(
            f"{asked.name}: the map is not of the tiles of {asked.slide.source}; draw it without --magnification"
        )
    if info.coords_unit == "um":
        corners = corners / (info.mpp or asked.mpp or np.nan)
    maps = tuple(replace(one, values=mean_of_children(one.values, parents.rows, len(corners))) for one in shown.maps)
    measured = {
        name: mean_of_children(values, parents.rows, len(corners)) for name, values in shown.measurements.items()
    }
    about = f"{shown.about}; mean over the tiles in each tile of {magnification:g}x"
    coords = np.rint(corners).astype(np.int64)
    return replace(shown, coords=coords, info=info, maps=maps, measurements=measured, about=about)


def mean_of_children(values: Floats, parents: Integers, n_parents: int) -> Floats:
    """The mean of the values (N) of the tiles of each parent, without nan; nan if there are none.

    >>> mean_of_children(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1]), 2).tolist()
    [2.0, 5.0]
    """
    known = ~np.isnan(values)
    counts = np.bincount(parents[known], minlength=n_parents)
    sums = np.bincount(parents[known], weights=values[known], minlength=n_parents)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _parents_at(slide: str, file: OpenFeatures, magnification: float) -> Parents | None:
    """The coarser tiles of a magnification; None for that of the tiles themselves."""
    known: dict[float, Parents | None] = {_magnification(file.info): None}
    known |= {_magnification(parents.file.info): parents for parents in file.parents}
    for there, parents in known.items():
        if abs(there - magnification) <= TOLERANCE * magnification:
            return parents
    named = ", ".join("unknown" if np.isnan(there) else f"{there:.3g}" for there in known)
    raise AsmilError(f"{slide}: its features have no tiles at magnification {magnification:g}; they have {named}")


def _magnification(info: FeatureInfo) -> float:
    return np.nan if info.tile_mpp is None else NOMINAL_MPP / info.tile_mpp
