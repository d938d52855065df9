"""When recorded attention should worry its owner: what was seen, what it means, and which settings to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from asmil.evaluation.run import setting
from asmil.evaluation.stability import advice

if TYPE_CHECKING:
    from asmil.evaluation.stability.analysis import RunStability

FEWEST_TILES = 10
"""Slides with so few tiles or fewer are not judged: their attention is flat or a peak by chance."""
UNIFORM_SHARE = 0.9
ONE_TILE_WEIGHT = 0.9
MOVING_JSD = 0.005
MOVING_RELATIVE = 0.005
DISAGREEING_OVERLAP = 0.2
DISAGREEING_RANKS = 0.5
TRAININGS_NAMED = 4


@dataclass(frozen=True)
class Alarm:
    """kind: uniform, one_tile, moving or seeds_disagree; text: what was seen and means; advice: what to try."""

    kind: str
    text: str
    advice: str


def alarm_lines(stability: RunStability) -> list[str]:
    """The alarms of a run, a line each, ready to print."""
    return [f"alarm: {alarm.text} {alarm.advice}" for alarm in stability.alarms]


def alarms_of(
    config: Mapping[str, Any], times: pd.DataFrame, slides: pd.DataFrame, agreement: pd.DataFrame
) -> tuple[Alarm, ...]:
    """All alarms that the tables of a run give rise to."""
    judged = slides[slides["n_tiles"] > FEWEST_TILES]
    uniform = _uniform(config, times, judged)
    found = (
        uniform,
        _one_tile(config, judged),
        _moving(config, times, judged),
        _seeds_disagree(config, agreement[agreement["slide"].isin(judged["slide"])], flat=uniform is not None),
    )
    return tuple(alarm for alarm in found if alarm is not None)


def _uniform(config: Mapping[str, Any], times: pd.DataFrame, slides: pd.DataFrame) -> Alarm | None:
    flat = slides["effective_share"] > UNIFORM_SHARE
    extent = _extent(slides, flat)
    if extent is None:
        return None
    shares = times.groupby(["fold", "seed", "slide"])["effective_share"].agg(["min", "last"])
    others = slides[flat].join(shares, on=["fold", "seed", "slide"])
    lowest, last = others["min"].median(), others["last"].median()
    proposals = [*advice.less_flattening(config), advice.learn_faster(config), advice.train_longer(config)]
    if others["min"].min() > UNIFORM_SHARE:
        when = "at every recording, from the start on"
    elif last > UNIFORM_SHARE:
        when = f"at the epoch that was kept, though it had been less so (lowest share {lowest:.2f})"
    else:
        when = f"at the epoch that was kept, though not at the end of the training (share {last:.2f} there)"
        proposals = ["keep the last epoch with `--set training.select=last`"]
    median = slides.loc[flat, "effective_share"].median()
    return Alarm(
        "uniform",
        f"the attention is nearly uniform {when}, {extent}: the effective share is above {UNIFORM_SHARE:g}, its median "
        f"{median:.3f}. The tiles are pooled almost as a plain mean, and a small JSD means nothing, since a flat "
        "attention cannot move; the order of the tiles may still be right.",
        advice.to_try(proposals),
    )


def _one_tile(config: Mapping[str, Any], slides: pd.DataFrame) -> Alarm | None:
    peaked = slides["max_weight"] > ONE_TILE_WEIGHT
    extent = _extent(slides, peaked)
    if extent is None:
        return None
    median = slides.loc[peaked, "max_weight"].median()
    return Alarm(
        "one_tile",
        f"one tile takes nearly all of the attention {extent}: its weight is above {ONE_TILE_WEIGHT:g}, the median "
        f"{median:.3f}. The slide is judged by that tile alone; look whether it shows the lesion or an artifact.",
        advice.to_try(
            [
                *advice.own_rule(config, ("sparsemax", "entmax")),
                advice.more_anchor(config),
                advice.more_entropy(config),
                advice.learn_slower(config),
            ]
        ),
    )


def _moving(config: Mapping[str, Any], times: pd.DataFrame, slides: pd.DataFrame) -> Alarm | None:
    ended = slides[slides["finished"].astype(bool)]
    moving = (ended["jsd_late"] > MOVING_JSD) & (ended["jsd_relative"] > MOVING_RELATIVE)
    extent = _extent(ended, moving)
    if extent is None:
        return None
    seen = ended[moving]
    apart = times.groupby(["fold", "seed", "slide"])["epoch"].diff().median()
    step = "from one epoch to the next" if apart == 1 else f"between recordings {apart:.2g} epochs apart"
    proposals = [advice.more_anchor(config), advice.learn_slower(config)]
    if setting(config, "training", "schedule") == "constant":
        proposals.append(
            "let the learning rate fall with `--set training.schedule=cosine`, which stills any model at its end"
        )
    else:
        proposals.append("take more slides a step with `--set training.accumulate=4`")
    return Alarm(
        "moving",
        f"the attention was still moving when the training ended, {extent}: {step} the late JSD is "
        f"{seen['jsd_late'].median():.3f} nats, {100 * seen['jsd_relative'].median():.1f} % of what the attention says "
        "(medians). A map of the last epoch is one of many that the model passed through.",
        advice.to_try(proposals),
    )


def _seeds_disagree(config: Mapping[str, Any], agreement: pd.DataFrame, *, flat: bool) -> Alarm | None:
    if agreement.empty:
        return None
    alike = agreement.groupby(["fold", "slide"])[["top1_overlap", "rank_correlation"]].mean()
    unlike = (alike["top1_overlap"] < DISAGREEING_OVERLAP) & (alike["rank_correlation"] < DISAGREEING_RANKS)
    if 2 * unlike.sum() <= len(unlike):
        return None
    overlap, ranks = alike.loc[unlike].mean()
    cure = "see to the flatness first" if flat else advice.more_anchor(config)
    return Alarm(
        "seeds_disagree",
        f"the seeds disagree about where to look, on {unlike.sum()} of {len(unlike)} slides: two of them share "
        f"{100 * overlap:.0f} % of the heaviest 1 % of tiles (by chance 1 %), and their rank correlation is "
        f"{ranks:.2f}. What a map shows depends on the seed.",
        advice.to_try([cure, "read the mean over the seeds, as `asmil predict --attention` writes it"]),
    )


def _extent(slides: pd.DataFrame, flags: pd.Series[bool]) -> str | None:
    """On how many slides and in which trainings; None unless most slides of at least one training are meant."""
    by_training = flags.groupby([slides["fold"], slides["seed"]]).mean()
    named = [f"fold {fold} seed {seed}" for fold, seed in by_training.index[by_training > 0.5]]
    if not named:
        return None
    counted = f"{flags.sum()} of {len(flags)}"
    if len(by_training) == 1:
        return f"on {counted} slides"
    shown = ", ".join(named[:TRAININGS_NAMED]) + ", ..." * (len(named) > TRAININGS_NAMED)
    which = "" if len(named) == len(by_training) else f"{shown}; "
    return f"in {len(named)} of {len(by_training)} trainings ({which}{counted} slides, counted in each)"
