"""Scale attention to scores with a threshold: as in papers, and in ways that are fair to normal slides.

Attention sums to 1 on every slide. Min-max scaling, which papers use, sets the highest tile of every slide to 1, even
on normal slides: specificity then measures how peaked the attention is, and every normal slide adds a false positive
with the highest possible score. `cohort` and `gated` allow slides without positive tiles; under `times_n` the highest
tile is at least 1, since not all tiles are below average.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import floats_of

Scaling = Literal["minmax", "rank", "times_n", "cohort", "gated"]

THRESHOLDS: dict[Scaling, float] = {"minmax": 0.5, "rank": 0.5, "times_n": 1.0, "cohort": 0.5, "gated": 0.5}
"""Tiles with at least this score are positive."""


def scaling_title(scaling: Scaling) -> str:
    """A scaling with its threshold."""
    return f"{scaling}, threshold\u00a0{THRESHOLDS[scaling]:g}"


def scale_scores(
    attention: npt.ArrayLike,
    scaling: Scaling = "minmax",
    *,
    limits: tuple[float, float] | None = None,
    probability: float | None = None,
) -> Floats:
    """N scores of the N tiles of a slide.

    minmax: (a - min) / (max - min) of the slide; 0 if all tiles are equal
    rank: average rank / N, so that a fixed share of tiles is positive on every slide; 0 if all tiles are equal
    times_n: N a / sum a, attention relative to uniform attention (1)
    cohort: (a - low) / (high - low), clipped to 0 .. 1, with the `limits` (low, high) of all slides (`cohort_limits`)
    gated: minmax times the slide's tumor `probability`
    """
    values = floats_of("attention", attention).reshape(-1)
    if scaling not in THRESHOLDS:
        raise AsmilError(f"there is no scaling {scaling!r}; {did_you_mean(scaling, THRESHOLDS)}")
    if not np.isfinite(values).all():
        raise AsmilError(f"{int((~np.isfinite(values)).sum())} of {values.size} tile values are not finite numbers")
    if values.size == 0:
        return values
    if scaling == "rank":
        return _ranks(values)
    if scaling == "times_n":
        return _times_fair_share(values)
    if scaling == "cohort":
        if limits is None:
            raise AsmilError("the scaling 'cohort' needs the limits of all slides; compute them with cohort_limits")
        return np.clip(_between(values, *limits), 0, 1)
    scaled = _between(values, float(values.min()), float(values.max()))
    if scaling == "minmax":
        return scaled
    if probability is None or not 0 <= probability <= 1:
        raise AsmilError(f"the scaling 'gated' needs the slide's tumor probability, 0 to 1, not {probability}")
    return scaled * probability


def cohort_limits(maps: Iterable[npt.ArrayLike]) -> tuple[float, float]:
    """The smallest and the largest value of all slides, for the scaling `cohort`.

    The values should be comparable between slides: tile logits, or N times attention. Attention itself is smaller on
    slides with more tiles.
    """
    ends = [(np.min(values), np.max(values)) for values in map(np.asarray, maps) if values.size]
    if not ends:
        raise AsmilError("no slide has tiles, so the cohort has no limits")
    return float(min(low for low, _ in ends)), float(max(high for _, high in ends))


def _between(values: Floats, low: float, high: float) -> Floats:
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _ranks(values: Floats) -> Floats:
    from scipy.stats import rankdata

    return np.zeros_like(values) if values.min() == values.max() else rankdata(values) / values.size


def _times_fair_share(values: Floats) -> Floats:
    if values.min() < 0:
        raise AsmilError("the scaling 'times_n' is for attention, but a tile has a negative value; use another scaling")
    if values.min() == values.max():
        return np.full_like(values, 1.0 if values[0] > 0 else 0.0)
    return np.asarray(values.size * values / values.sum())
