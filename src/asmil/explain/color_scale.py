"""From the values of tiles to colors, and the numbers of the legend.

Colors go through a perceptually ordered map that color-blind readers can follow: magma, viridis, cividis or inferno for
values of one sign, and purple to orange around 0 for values of both. How strongly a map covers the slide never
depends on a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.reporting.formats import format_alike, format_significant

ScaleKind = Literal["percentile", "absolute"]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]

ONE_SIGN = ("viridis", "magma", "inferno", "cividis")
BOTH_SIGNS = ("PuOr_r", "RdBu_r")
COLOR_MAPS = (*ONE_SIGN, *BOTH_SIGNS)
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
OUTLIERS = 0.5
"""Percent of the values at each end that an absolute scale does not stretch to; the legend marks its ends then."""


@dataclass(frozen=True)
class ColorScale:
    """How values become colors.

    kind: `percentile`, the share of tiles with at most this value; or `absolute`, linear from `low` to `high`
    low, high: the ends of an absolute scale
    quantiles: of a percentile scale: the sorted values
    signed: whether 0 has the middle color
    clips_low, clips_high: whether values lie beyond the ends and have the color of the end
    """

    kind: ScaleKind
    color_map: str
    low: float
    high: float
    quantiles: Floats
    signed: bool = False
    clips_low: bool = False
    clips_high: bool = False

    def positions(self, values: npt.ArrayLike) -> Floats:
        """Where values lie on the scale, 0 to 1; nan stays nan."""
        found = np.asarray(values, dtype=np.float64)
        if self.kind == "percentile":
            return np.where(np.isnan(found), np.nan, percentiles(found, self.quantiles))
        if self.high <= self.low:
            return np.where(np.isnan(found), np.nan, 0.5)
        return np.clip((found - self.low) / (self.high - self.low), 0.0, 1.0)

    def colors(self, values: npt.ArrayLike) -> Codes:
        """N x 3, RGB; nan is black and is never drawn."""
        codes = np.rint(np.nan_to_num(self.positions(values)) * 255).astype(np.uint8)
        return lookup_table(self.color_map)[codes]

    def ticks(self) -> list[tuple[float, str]]:
        """Positions on the scale and their labels."""
        if self.kind == "percentile":
            texts = format_alike(np.quantile(self.quantiles, TICKS).tolist())
            return [(place, f"{100 * place:.0f} %  {text}") for place, text in zip(TICKS, texts, strict=True)]
        if self.high <= self.low:
            return [(0.5, format_significant(self.low))]
        texts = format_alike([self.low + place * (self.high - self.low) for place in TICKS])
        texts[0] = ("≤ " if self.clips_low else "") + texts[0]
        texts[-1] = ("≥ " if self.clips_high else "") + texts[-1]
        return list(zip(TICKS, texts, strict=True))


def color_scale(
    values: npt.ArrayLike,
    kind: ScaleKind | None = None,
    color_map: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool | None = None,
) -> ColorScale:
    """A scale for the values of one map, or a common one for those of several, joined.

    kind: default: `percentile`, or `absolute` for values of both signs, whose 0 means something
    limits: ends of an absolute scale; default: the range of the values without 0.5 % at each end, and for values
        of both signs as far below 0 as above
    signed: whether 0 is the middle; default: whether there are values of both signs
    """
    known = np.asarray(values, dtype=np.float64).reshape(-1)
    known = known[~np.isnan(known)]
    if known.size == 0:
        raise AsmilError("no tile has a value, so there is nothing to draw")
    if not np.isfinite(known).all():
        raise AsmilError(f"{int((~np.isfinite(known)).sum())} of {known.size} tile values are infinite; leave them out")
    signed = bool(known.min() < 0 < known.max()) if signed is None else signed
    if limits is not None and kind == "percentile":
        raise AsmilError("a percentile scale has no limits; ask for the scale 'absolute', or leave the limits out")
    kind = kind or ("absolute" if signed or limits is not None else "percentile")
    chosen = color_map or (BOTH_SIGNS[0] if signed and kind == "absolute" else ONE_SIGN[0])
    if chosen not in COLOR_MAPS:
        raise AsmilError(f"color map {chosen!r} is unknown; {did_you_mean(chosen, COLOR_MAPS)}")
    if kind == "percentile":
        return ColorScale(kind, chosen, float(known.min()), float(known.max()), np.sort(known))
    low, high = limits if limits is not None else _ends(known, signed)
    if not (np.isfinite([low, high]).all() and low <= high):
        raise AsmilError(f"the limits {low:g} and {high:g} are no range; give the lower one first")
    beyond = (bool(known.min() < low), bool(known.max() > high))
    return ColorScale(kind, chosen, float(low), float(high), np.sort(known), signed, *beyond)


def percentiles(values: npt.ArrayLike, among: Floats) -> Floats:
    """The share of the sorted values `among` that are smaller, equal ones counting half; 0 to 1.

    >>> percentiles([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    found = np.asarray(values, dtype=np.float64)
    if len(among) < 2:
        return np.full(found.shape, 0.5)
    below = np.searchsorted(among, found, side="left")
    up_to = np.searchsorted(among, found, side="right")
    return np.clip(((below + up_to - 1) / 2) / (len(among) - 1), 0.0, 1.0)


@cache
def lookup_table(color_map: str) -> Codes:
    """256 x 3, RGB."""
    import matplotlib

    colors = matplotlib.colormaps[color_map](np.linspace(0, 1, 256))[:, :3]
    return np.asarray(np.rint(colors * 255), dtype=np.uint8)


def _ends(values: Floats, signed: bool) -> tuple[float, float]:
    if signed:
        end = float(np.percentile(np.abs(values), 100 - OUTLIERS))
        return -end, end
    low, high = np.percentile(values, [OUTLIERS, 100 - OUTLIERS])
    return (float(low), float(high)) if high > low else (float(values.min()), float(values.max()))
