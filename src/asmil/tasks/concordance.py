"""The C-index: how often, in a pair of patients, the one with the higher risk has the event first.

A pair (i, j) is comparable if i has an event and t_i < t_j, or t_i = t_j and only i has an event. It is concordant if
risk_i > risk_j; risks within 1e-8 of each other are tied. Two events at the same time are not comparable.
With C concordant, D discordant, R pairs of tied risk, and T comparable pairs at equal times:

    harrell, risk   (C + R/2) / (C + D + R)          the default; scikit-survival's number
    none            C / (C + D)
    time            (C + T/2) / (C + D + T)
    all             (C + (R + T)/2) / (C + D + R + T)     VLSA's; T pairs count twice
    strict          share of pairs with t_i < t_j and risk_i > risk_j; tied risks count 0; used in the ASMIL paper
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from asmil.errors import AsmilError, did_you_mean
from asmil.tables.arrays import Floats
from asmil.tasks.checked_arrays import checked_outcomes, floats_of

Ties = Literal["harrell", "strict", "none", "time", "risk", "all"]

TIED_RISK = 1e-8
NUMBERS_AT_ONCE = 4_000_000
Integers = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Pairs:
    """Numbers of comparable pairs, or sums of weights: one value for each set of weights.

    strict_concordant, strict_comparable: of the pairs with t_i < t_j, those with risk_i > risk_j, and all
    """

    concordant: Floats
    discordant: Floats
    tied_risk: Floats
    tied_time: Floats
    strict_concordant: Floats
    strict_comparable: Floats

    @property
    def comparable(self) -> Floats:
        """All comparable pairs."""
        return self.concordant + self.discordant + self.tied_risk


def concordance(time: npt.ArrayLike, event: npt.ArrayLike, risk: npt.ArrayLike, ties: Ties = "harrell") -> float:
    """The C-index of n patients; nan if the rule leaves no pair to count although some are comparable.

    time: n times; event: n, 1 observed, 0 censored; risk: n, higher is worse, infinite allowed
    """
    pairs = concordance_pairs(time, event, risk)
    comparable = pairs.strict_comparable if ties == "strict" else pairs.comparable
    if not comparable[0] > 0:
        raise AsmilError(
            f"no two of the {np.size(risk)} patients can be compared, so the C-index is undefined: it needs an event "
            "before the time of another patient"
        )
    return float(_index(pairs, ties)[0])


def concordance_pairs(time: npt.ArrayLike, event: npt.ArrayLike, risk: npt.ArrayLike) -> Pairs:
    """The numbers of pairs behind the C-index, each as an array of one value."""
    return _count(time, event, risk, np.ones((1, np.size(risk))))


def weighted_concordance(
    time: npt.ArrayLike, event: npt.ArrayLike, risk: npt.ArrayLike, weights: npt.ArrayLike, ties: Ties = "harrell"
) -> Floats:
    """R values of the C-index of n patients under R x n weights; nan if no pair can be compared.

    Each row of weights is a bootstrap resample: how often each patient was drawn.
    """
    rows = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    step = max(1, NUMBERS_AT_ONCE // max(1, rows.shape[1]))
    parts = [rows[first : first + step] for first in range(0, len(rows), step)]
    return np.concatenate([_index(_count(time, event, risk, part), ties) for part in parts])


def _index(pairs: Pairs, ties: Ties) -> Floats:
    c, d, r, t = pairs.concordant, pairs.discordant, pairs.tied_risk, pairs.tied_time
    fractions = {
        "harrell": (c + r / 2, c + d + r),
        "risk": (c + r / 2, c + d + r),
        "none": (c, c + d),
        "time": (c + t / 2, c + d + t),
        "all": (c + (r + t) / 2, c + d + r + t),
        "strict": (pairs.strict_concordant, pairs.strict_comparable),
    }
    if ties not in fractions:
        raise AsmilError(f"the ties of a C-index cannot be {ties!r}: {did_you_mean(ties, get_args(Ties))}")
    top, bottom = fractions[ties]
    return np.asarray(np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0))


def _count(time: npt.ArrayLike, event: npt.ArrayLike, risk: npt.ArrayLike, weights: Floats) -> Pairs:
    times, events = checked_outcomes(time, event)
    risks = floats_of("risk", risk)
    if risks.shape != times.shape or weights.shape[1:] != times.shape:
        raise AsmilError(
            f"there are {len(times)} times, {risks.size} risks and {weights.shape[1]} weights; "
            "give one of each per patient"
        )
    if np.isnan(risks).any():
        index = int(np.isnan(risks).argmax())
        raise AsmilError(f"the risk of patient {index} (counted from 0) is nan; give a number for every patient")
    # latest first, and at equal times censored before events: patients comparable with an event come before it
    order = np.lexsort((events, -times))
    times, events, risks, weights = times[order], events[order], risks[order], weights[:, order]
    sorted_risks = np.sort(risks)
    rank = np.argsort(np.argsort(risks, kind="stable"), kind="stable")

    later = np.searchsorted(-times, -times[events], side="left")
    n_censored_until = np.concatenate([[0], np.cumsum(~events)])
    same_time_end = np.searchsorted(-times, -times[events], side="right")
    comparable_end = later + n_censored_until[same_time_end] - n_censored_until[later]
    of_events = risks[events]
    limits = (
        (comparable_end, np.searchsorted(sorted_risks, of_events - TIED_RISK, side="left")),
        (comparable_end, np.searchsorted(sorted_risks, of_events + TIED_RISK, side="right")),
        (later, np.searchsorted(sorted_risks, of_events, side="left")),
    )
    before, below = (np.concatenate(parts) for parts in zip(*limits, strict=True))
    lower, lower_or_tied, strictly_lower = np.split(weight_before_and_below(rank, weights, before, below), 3, axis=1)
    reached = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)], axis=1)
    own = weights[:, events]

    def summed(partners: Floats) -> Floats:
        return np.asarray((own * partners).sum(axis=1))

    return Pairs(
        concordant=summed(lower),
        discordant=summed(reached[:, comparable_end] - lower_or_tied),
        tied_risk=summed(lower_or_tied - lower),
        tied_time=summed(reached[:, comparable_end] - reached[:, later]),
        strict_concordant=summed(strictly_lower),
        strict_comparable=summed(reached[:, later]),
    )


def weight_before_and_below(values: Integers, weights: Floats, before: Integers, below: Integers) -> Floats:
    """R x q sums of the weights of points p < before_q with values_p < below_q.

    The points are split by the bits of their value, highest first (a wavelet matrix). log2(n) passes over the arrays
    answer all limits in O((n + q) log n) per set of weights; comparing all pairs would need O(n q).

    values: n integers in 0 .. n - 1; weights: R x n; before, below: q limits in 0 .. n
    """
    start, end = np.zeros_like(before), before
    total = np.zeros((len(weights), len(before)))
    for bit in reversed(range(len(values).bit_length())):
        is_low = (values >> bit & 1) == 0
        lows_before = np.concatenate([[0], np.cumsum(is_low)])
        low_weight = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights * is_low, axis=1)], axis=1)
        takes_lows = (below >> bit & 1) == 1
        total += np.where(takes_lows, low_weight[:, end] - low_weight[:, start], 0.0)
        low_start, low_end, n_low = lows_before[start], lows_before[end], lows_before[-1]
        start = np.where(takes_lows, n_low + start - low_start, low_start)
        end = np.where(takes_lows, n_low + end - low_end, low_end)
        lows_first = np.argsort(~is_low, kind="stable")
        values, weights = values[lows_first], weights[:, lows_first]
    return total
