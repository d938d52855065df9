"""Outcomes of synthetic patients and slides other than classes: survival times, values, several labels.

All outcomes are known functions of the tiles. For a patient with the share s of lesion tiles on all slides together,
and the worst morphology m (1, 2, ... M; 0: none):

    burden   = log(s / witness_min) / log(witness_max / witness_min), within 0 .. 1; 0 without a lesion
    log-risk = burden_effect * burden + worst_effect * m / M
    hazard   = log(2) / median_months * exp(log-risk)        per month, constant: times are exponential

Censoring is independent of the risk and also exponential, with the rate that gives the requested expected share of
censored patients.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field

from asmil.settings.config import Settings
from asmil.synthetic.bags.plan import SlidePlan, Stream, SyntheticConfig
from asmil.synthetic.bags.world import SUB_MORPHOLOGIES
from asmil.synthetic.plan import generator
from asmil.tables.arrays import Floats

SyntheticTask = Literal["classification", "survival", "regression", "multilabel"]

SHORTEST_MONTHS = 0.01
RATE_HALVINGS = 200


class SurvivalConfig(Settings):
    """Survival times of a synthetic survival cohort."""

    burden_effect: float = Field(
        1.0, description="log-risk of the largest share of lesion tiles relative to the smallest"
    )
    worst_effect: float = Field(2.0, description="log-risk of the worst morphology relative to none")
    median_months: float = Field(60.0, gt=0, description="median survival of patients with log-risk 0, in months")
    censored: float = Field(0.5, ge=0, lt=1, description="expected share of censored patients")


def patient_times(
    config: SyntheticConfig, survival: SurvivalConfig, plans: list[SlidePlan], tiles: pd.DataFrame
) -> pd.DataFrame:
    """One row per patient, sorted by name: the observed time and event, and the truth behind them.

    tiles: the truth of the tiles, with the columns slide, tumor and morphology
    """
    patients = {plan.patient: plan for plan in reversed(plans)}
    patient_of = {plan.slide: plan.patient for plan in plans}
    seen = tiles.groupby(tiles["slide"].map(patient_of)).agg(share=("tumor", "mean"), worst=("morphology", "max"))
    seen = seen.loc[sorted(patients)]
    log_risk = survival.burden_effect * _burden(config, seen["share"].to_numpy()) + survival.worst_effect * seen[
        "worst"
    ].to_numpy() / (SUB_MORPHOLOGIES * (config.classes - 1))
    hazard = np.log(2) / survival.median_months * np.exp(log_risk)
    draws = np.array(
        [
            generator(config.seed, Stream.OUTCOME, *patients[name].patient_address).standard_exponential(2)
            for name in seen.index
        ]
    )
    event_time = draws[:, 0] / hazard
    rate = _censoring_rate(hazard, survival.censored)
    censoring_time = draws[:, 1] / rate if rate else np.full(len(seen), np.inf)
    return pd.DataFrame(
        {
            "patient": seen.index,
            "split": [patients[name].split for name in seen.index],
            "time": np.maximum(np.minimum(event_time, censoring_time).round(2), SHORTEST_MONTHS),
            "event": (event_time <= censoring_time).astype(int),
            "log_risk": log_risk,
            "hazard": hazard,
            "lesion_share": seen["share"].to_numpy(),
            "worst_morphology": seen["worst"].to_numpy(),
            "event_time": event_time,
            "censoring_time": censoring_time,
        }
    )


def lesion_shares(plans: list[SlidePlan], tiles: pd.DataFrame) -> list[float]:
    """The share of lesion tiles of every slide."""
    shares = tiles.groupby("slide")["tumor"].mean()
    return [round(float(shares[plan.slide]), 6) for plan in plans]


def morphology_labels(plans: list[SlidePlan], tiles: pd.DataFrame) -> list[str]:
    """The morphologies that occur on every slide, as the letters a, b, ...: `a;c`, or `none`."""
    present = tiles[tiles["morphology"] > 0].groupby("slide")["morphology"].unique()
    letters = {slide: ";".join(chr(ord("a") + kind - 1) for kind in sorted(kinds)) for slide, kinds in present.items()}
    return [letters.get(plan.slide, "none") for plan in plans]


def _burden(config: SyntheticConfig, share: Floats) -> Floats:
    if config.witness_max == config.witness_min:
        return np.asarray((share > 0).astype(np.float64))
    inside = np.clip(share, config.witness_min, config.witness_max)
    return np.asarray(np.log(inside / config.witness_min) / np.log(config.witness_max / config.witness_min))


def _censoring_rate(hazard: Floats, share: float) -> float:
    """The rate c for which the mean of c / (c + hazard), the probability of being censored first, equals the share."""
    if share == 0:
        return 0.0
    low, high = np.log(hazard.min()) - 50, np.log(hazard.max()) + 50
    for _ in range(RATE_HALVINGS):
        middle = (low + high) / 2
        rate = np.exp(middle)
        low, high = (middle, high) if np.mean(rate / (rate + hazard)) < share else (low, middle)
    return float(np.exp(low))
