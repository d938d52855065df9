"""Theorem 1 of the ASMIL paper, corrected: bounds of the normalized sigmoid for scores with a gap around 0.

The premise: h high scores in [tau, tau + gamma], any number of low scores at most -tau, nothing between.

    (A) nsf       highs differ by a factor of at most (1 + e^-tau) / (1 + e^-(tau + gamma))
                  every low gets at most e^-tau / h
    (B) softmax   highs differ by a factor of at most kappa  <=>  T >= gamma / ln kappa     (any T if h = 1)
                  every low gets at most epsilon  <=>  T <= 2 tau / (ln(1/epsilon - 1) - ln h)
                                                                               (any T if 1/epsilon - 1 <= h)

The second limit is that of the paper's proof. Its statement prints 2 tau / ln(h / epsilon), which is not necessary.
"""

from __future__ import annotations

import math


def nsf_ratio_bound(tau: float, gamma: float = math.inf) -> float:
    """The largest ratio of two high weights under nsf; without gamma the bound for any highs from tau on."""
    return (1 + math.exp(-tau)) / (1 + math.exp(-(tau + gamma)))


def nsf_low_bound(tau: float, highs: int) -> float:
    """A bound on each low weight under nsf; approached, not reached, as tau or the number of highs grows."""
    return math.exp(-tau) / highs


def lowest_temperature(gamma: float, kappa: float, highs: int = 2) -> float:
    """The lowest T at which softmax keeps high weights within a factor kappa > 1; 0 (any T) for a single high."""
    return gamma / math.log(kappa) if highs > 1 else 0.0


def highest_temperature(tau: float, highs: int, epsilon: float) -> float:
    """The highest T at which softmax keeps low weights at or below epsilon, for all scores of the premise."""
    room = math.log(1 / epsilon - 1) - math.log(highs) if epsilon < 1 else -math.inf
    return 2 * tau / room if room > 0 else math.inf


def highest_temperature_as_printed(tau: float, highs: int, epsilon: float) -> float:
    """The limit in the statement of the theorem: lower than necessary, kept for comparison."""
    return 2 * tau / math.log(highs / epsilon)
