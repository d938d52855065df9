"""How a map is scaled: from the values of tiles to colors, and to the numbers of the legend.

Weights that are distributed over the tiles of a slide, such as attention, are drawn relative to the average tile, on
one fixed logarithmic scale for all slides, runs and methods: a flat map has one color, that of the average. Maps with
a meaningful 0 have it in the middle, and probabilities are drawn from 0 to 1 (`natural_scale`).

Color maps are perceptually ordered and suitable for color-blind readers: magma, viridis, cividis or inferno for values
of one sign, and purple to orange around 0 for values of both. The opacity of a map does not depend on its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.explain.settings import HeatmapSettings, ScaleKind
from asmil.explain.tile_map import TileMap
from asmil.reporting.formats import format_alike, format_significant
from asmil.tables.arrays import Bytes, Floats

ONE_SIGN = ("viridis", "magma", "inferno", "cividis")
BOTH_SIGNS = ("PuOr_r", "RdBu_r")
COLOR_MAPS = (*ONE_SIGN, *BOTH_SIGNS)
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
RELATIVE_TICKS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""A relative scale goes from the first to the last of these multiples of the average tile."""
WEIGHT_KINDS = ("attention", "attention row", "attention_scores")
"""Maps of weights with any sum; other maps are weights if they sum to 1."""
SIGNED_KINDS = (
    *("contribution", "net_contribution"),
    *("attention_logit", "leave_one_out", "gradient", "integrated_gradients"),
)
"""Maps with a meaningful 0, also of methods; they show one class."""
FIXED_RANGES = {
    "probability": (0.0, 1.0),
    "tile probability": (0.0, 1.0),
    "clusters": (0.0, 1.0),
    "percentile": (0.0, 100.0),
}
"""Maps with a fixed range of values."""
SPREAD_KIND = "standard deviation of the percentile"
"""The map of the differences between several maps; drawn from 0 to 0.5, in colors of its own."""
SUM_TOLERANCE = 1e-3
OUTLIERS = 0.5
"""Percent of the values at each end that are outside an absolute scale; the legend then marks its ends."""


@dataclass(frozen=True)
class ColorScale:
    """How values become colors.

    kind: `relative`, the logarithm of the value as a multiple of `average`; `percentile`, the share of tiles with at
        most this value; or `absolute`, linear from `low` to `high`
    low, high: the ends of an absolute scale; of a relative one as multiples of the average
    quantiles: the sorted values
    signed: whether 0 has the middle color
    clips_low, clips_high: whether there are values beyond the ends, which have the color of the end
    average: the value of the average tile, for weights
    stretched: whether the ends come from the values, so that colors cannot be compared with those of other maps
    """

    kind: ScaleKind
    color_map: str
    low: float
    high: float
    quantiles: Floats
    signed: bool = False
    clips_low: bool = False
    clips_high: bool = False
    average: float | None = None
    stretched: bool = False

    def positions(self, values: npt.ArrayLike) -> Floats:
        """Where values are on the scale, 0 to 1; nan stays nan."""
        numbers = np.asarray(values, dtype=np.float64)
        if self.kind == "percentile":
            return np.where(np.isnan(numbers), np.nan, percentiles(numbers, self.quantiles))
        if self.kind == "relative":
            return relative_positions(self.relative(numbers))
        if self.high <= self.low:
            return np.where(np.isnan(numbers), np.nan, 0.5)
        return np.clip((numbers - self.low) / (self.high - self.low), 0.0, 1.0)

    def relative(self, values: npt.ArrayLike) -> Floats:
        """Weights as multiples of that of the average tile."""
        assert self.average is not None, "only weights have an average"
        return np.asarray(values, dtype=np.float64) / self.average

    def colors(self, values: npt.ArrayLike) -> Bytes:
        """N x 3, RGB; nan is black and is never drawn."""
        codes = np.rint(np.nan_to_num(self.positions(values)) * 255).astype(np.uint8)
        return lookup_table(self.color_map)[codes]

    def ticks(self) -> list[tuple[float, str]]:
        """Positions on the scale and their labels."""
        if self.kind == "percentile":
            texts = format_alike(np.quantile(self.quantiles, TICKS).tolist())
            return [(tick, f"{100 * tick:.0f} %  {text}") for tick, text in zip(TICKS, texts, strict=True)]
        if self.kind == "relative":
            positions = relative_positions(np.array(RELATIVE_TICKS)).tolist()
            return list(zip(positions, self._marked([f"{tick:g}" for tick in RELATIVE_TICKS]), strict=True))
        if self.high <= self.low:
            return [(0.5, format_significant(self.low))]
        texts = format_alike([self.low + tick * (self.high - self.low) for tick in TICKS])
        return list(zip(TICKS, self._marked(texts), strict=True))

    def caption(self, unit: str) -> str:
        """What the numbers of the legend mean; unit: what the values are."""
        if self.kind == "percentile":
            return f"{unit}: percentile and value"
        if self.kind == "relative":
            low, high = map(format_significant, self.relative(self.quantiles[[0, -1]]).tolist())
            return f"{unit}, 1 = average tile; here {low} to {high}"
        return f"{unit}; colors span the values shown" if self.stretched else unit

    def _marked(self, texts: list[str]) -> list[str]:
        """Labels; the first and the last show whether there are values beyond them."""
        first = ("≤ " if self.clips_low else "") + texts[0]
        return [first, *texts[1:-1], ("≥ " if self.clips_high else "") + texts[-1]]


def color_scale(
    values: npt.ArrayLike,
    kind: ScaleKind | None = None,
    color_map: str | None = None,
    limits: tuple[float, float] | None = None,
    signed: bool | None = None,
    average: float | None = None,
) -> ColorScale:
    """A scale for the values of one map, or an absolute one for those of several, joined.

    kind: default: `relative` if there is an average, otherwise `absolute`
    average: what counts as 1 on a relative scale; default: the mean of the values
    limits: ends of an absolute scale; default: the range of the values without 0.5 % at each end, symmetric about 0
        for values of both signs
    signed: whether 0 is the middle; default: whether there are values of both signs
    """
    known = np.asarray(values, dtype=np.float64).reshape(-1)
    known = known[~np.isnan(known)]
    if known.size == 0:
        raise AsmilError("no tile has a value, so there is nothing to draw")
    if not np.isfinite(known).all():
        raise AsmilError(f"{int((~np.isfinite(known)).sum())} of {known.size} tile values are infinite; leave them out")
    signed = bool(known.min() < 0 < known.max()) if signed is None else signed
    if limits is not None and kind in ("percentile", "relative"):
        raise AsmilError(f"a {kind} scale has no limits to set; ask for the scale 'absolute', or leave the limits out")
    kind = kind or ("absolute" if average is None or limits is not None else "relative")
    chosen = color_map or (BOTH_SIGNS[0] if signed and kind == "absolute" else ONE_SIGN[0])
    if chosen not in COLOR_MAPS:
        raise AsmilError(f"color map {chosen!r} is unknown; {did_you_mean(chosen, COLOR_MAPS)}")
    if kind == "percentile":
        return ColorScale(kind, chosen, float(known.min()), float(known.max()), np.sort(known), average=average)
    if kind == "relative":
        return _relative_scale(known, chosen, float(known.mean()) if average is None else average)
    low, high = limits if limits is not None else _ends(known, signed)
    if not (np.isfinite([low, high]).all() and low <= high):
        raise AsmilError(f"the limits {low:g} and {high:g} are not a range; give the lower one first")
    beyond = (bool(known.min() < low), bool(known.max() > high))
    stretched = limits is None and high > low
    return ColorScale(kind, chosen, float(low), float(high), np.sort(known), signed, *beyond, average, stretched)


def _relative_scale(known: Floats, color_map: str, average: float) -> ColorScale:
    if known.min() < 0:
        raise AsmilError("values below 0 have no scale relative to the average tile; ask for the scale 'absolute'")
    average = average if average > 0 else 1.0  # no tile has any weight
    low, high = RELATIVE_TICKS[0], RELATIVE_TICKS[-1]
    beyond = (bool(known.min() < low * average), bool(known.max() > high * average))
    return ColorScale("relative", color_map, low, high, np.sort(known), False, *beyond, average)


def natural_scale(
    kind: str,
    values: npt.ArrayLike,
    average: float | None = None,
    color_map: str | None = None,
    signed: bool = False,
) -> ColorScale:
    """The scale that fits a kind of map, for the values of one or of several.

    average: see `average_weight`; None for values that are not weights
    signed: whether 0 is meaningful, as for all SIGNED_KINDS
    """
    numbers = np.asarray(values, dtype=np.float64)
    low, high = FIXED_RANGES.get(kind, (np.inf, -np.inf))
    if np.nanmin(numbers, initial=np.inf) >= low and np.nanmax(numbers, initial=-np.inf) <= high:
        return color_scale(numbers, "absolute", color_map, (low, high), signed=False)
    if signed or kind in SIGNED_KINDS:
        return color_scale(numbers, "absolute", color_map, signed=True)
    return color_scale(numbers, color_map=color_map, average=average)


def scales_of(maps: Sequence[TileMap], settings: HeatmapSettings) -> list[ColorScale]:
    """One scale per map, by default the one that fits its kind.

    Absolute scales are common to all maps of one kind, and relative ones to all maps, so that colors can be compared.
    """

    def scale_for(tile_map: TileMap, values: Floats) -> ColorScale:
        if settings.scale is None and settings.limits is None:
            return natural_scale(tile_map.kind, values, tile_map.average, settings.color_map, tile_map.signed)
        signed = True if tile_map.signed else None
        return color_scale(values, settings.scale, settings.color_map, settings.limits, signed, tile_map.average)

    scales = []
    for tile_map in maps:
        if tile_map.kind == SPREAD_KIND:
            scales.append(color_scale(tile_map.values, "absolute", "magma", (0.0, 0.5)))
            continue
        common = scale_for(tile_map, np.concatenate([other.values for other in maps if other.kind == tile_map.kind]))
        scales.append(common if common.kind == "absolute" else scale_for(tile_map, tile_map.values))
    return scales


def average_weight(kind: str, values: npt.ArrayLike) -> float | None:
    """The mean of weights that are distributed over the tiles of a bag; None for values that are not weights."""
    weights = np.asarray(values, dtype=np.float64)
    weights = weights[~np.isnan(weights)]
    total = float(weights.sum())
    if kind in (*FIXED_RANGES, *SIGNED_KINDS) or total <= 0 or weights.min() < 0:
        return None
    are_weights = kind in WEIGHT_KINDS or abs(total - 1) <= SUM_TOLERANCE
    return float(weights.mean()) if are_weights else None


def value_range(values: Floats, kind: str = "") -> tuple[float, float]:
    """Lowest and highest value of the linear scale of the viewer.

    Maps with a fixed range, such as probabilities, have that range; others begin at 0, or are symmetric about 0 if
    their values have both signs or a meaningful 0.
    """
    low, high = float(values.min()), float(values.max())
    ends = FIXED_RANGES.get(kind)
    if ends is not None and ends[0] <= low and high <= ends[1]:
        return ends
    if low < 0 < high or kind in SIGNED_KINDS:
        largest = max(-low, high)
        return -largest, largest
    return (0.0, high) if low >= 0 else (low, 0.0)


def relative_positions(relative: npt.ArrayLike) -> Floats:
    """Where multiples of the average are on the relative scale, 0 to 1; nan stays nan.

    >>> relative_positions([0.0, 0.1, 1.0, 10.0, 99.0]).tolist()
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    low, high = math.log10(RELATIVE_TICKS[0]), math.log10(RELATIVE_TICKS[-1])
    inside: Floats = np.clip(np.asarray(relative, dtype=np.float64), RELATIVE_TICKS[0], RELATIVE_TICKS[-1])
    return np.clip((np.log10(inside) - low) / (high - low), 0.0, 1.0)


def percentiles(values: npt.ArrayLike, among: Floats) -> Floats:
    """The share of the sorted values `among` that are smaller, with equal values counted half; 0 to 1.

    >>> percentiles([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if len(among) < 2:
        return np.full(numbers.shape, 0.5)
    below = np.searchsorted(among, numbers, side="left")
    up_to = np.searchsorted(among, numbers, side="right")
    return np.clip(((below + up_to - 1) / 2) / (len(among) - 1), 0.0, 1.0)


@cache
def lookup_table(color_map: str) -> Bytes:
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
