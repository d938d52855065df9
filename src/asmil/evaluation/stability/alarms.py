"""Alarms about recorded attention: the finding, its meaning, and settings of `asmil train` to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from asmil.attention.measures import FLAT_SHARE
from asmil.cohort.splits import FoldNames
from asmil.runs.stored_settings import StoredSettings
from asmil.settings.config import flat as flattened

FEWEST_TILES = 10
"""Slides with at most this many tiles raise no alarm: their attention can be flat or peaked by chance."""
ONE_TILE_WEIGHT = 0.9
MOVING_JSD = 0.005
MOVING_RELATIVE = 0.005
DISAGREEING_OVERLAP = 0.2
DISAGREEING_RANKS = 0.5
TRAININGS_NAMED = 4
TRAINING = ["fold", "seed"]


@dataclass(frozen=True)
class Alarm:
    """A reason not to trust recorded attention.

    kind: a key of NAMES
    text: the finding and its meaning; advice: what to try
    extent: which trainings it is about, empty if it is about all
    """

    kind: str
    text: str
    advice: str
    extent: str = ""

    @property
    def name(self) -> str:
        """The finding in a few words."""
        return f"{NAMES.get(self.kind, self.kind)} {self.extent}".rstrip()

    @property
    def finding(self) -> str:
        """The finding and its meaning, short enough for a picture."""
        if self.kind not in MEANINGS:
            return self.text
        every, some = MEANINGS[self.kind]
        return f"{self.name[:1].upper()}{self.name[1:]}: {some if self.extent else every}"

    @property
    def short(self) -> str:
        """One sentence and the first two suggestions, for the top of every report on the run."""
        first = "; or ".join(self.advice.removesuffix(".").split("; or ")[:2])
        return f"{self.finding} {first}."


NAMES = {
    "uniform": "attention is flat",
    "one_tile": "attention is on one tile",
    "moving": "attention was still moving when training ended",
    "seeds_disagree": "seeds disagree about where to look",
    "same_prediction": "all predictions are the same",
}
MEANINGS = {
    "uniform": (
        "the model averages all tiles. Do not interpret the heat maps.",
        "these models average all tiles. Do not interpret their heat maps, nor the mean of all.",
    ),
    "one_tile": (
        "each prediction rests on a single tile. Check what it shows.",
        "each prediction of these models rests on a single tile. Check what it shows.",
    ),
    "moving": (
        "the map of another epoch would look different.",
        "their map of another epoch would look different.",
    ),
    "seeds_disagree": ("a map of one seed is not the map of the method.",) * 2,
}
"""What a finding means if it is about all trainings, and if it is about some of them."""


def alarms_of(
    settings: StoredSettings,
    times: pd.DataFrame,
    slides: pd.DataFrame,
    agreement: pd.DataFrame,
    folds: Mapping[int, str] | None = None,
) -> tuple[Alarm, ...]:
    """All alarms raised by the tables of a run; folds: how its folds are called."""
    folds = FoldNames() if folds is None else folds
    eligible = slides[slides["n_tiles"] > FEWEST_TILES]
    uniform = _uniform(settings, times, eligible, folds)
    alarms = (
        uniform,
        _one_tile(settings, eligible, folds),
        _moving(settings, times, eligible, folds),
        _seeds_disagree(settings, agreement[agreement["slide"].isin(eligible["slide"])], flat=uniform is not None),
    )
    return tuple(alarm for alarm in alarms if alarm is not None)


def _uniform(
    settings: StoredSettings, times: pd.DataFrame, slides: pd.DataFrame, folds: Mapping[int, str]
) -> Alarm | None:
    flat = slides["effective_share"] > FLAT_SHARE
    if (extent := _extent(slides, flat, folds)) is None:
        return None
    where, some = extent
    shares = times.groupby([*TRAINING, "slide"])["effective_share"].agg(["min", "last"])
    others = slides[flat].join(shares, on=[*TRAINING, "slide"])
    lowest, last = others["min"].median(), others["last"].median()
    faster = f"raise the learning rate with {_scaled(settings, 3, 'training.lr')}"
    longer = f"train longer with {_scaled(settings, 2, 'training.epochs')}"
    proposals = [*_less_flattening(settings), faster, longer]
    if others["min"].min() > FLAT_SHARE:
        when = "at every recording"
    elif last > FLAT_SHARE:
        when = f"at the epoch that was kept, but less so before (lowest share {lowest:.2f})"
    else:
        when = f"at the epoch that was kept, but not at the end of training (share {last:.2f} there)"
        proposals = ["keep the last epoch with `--set training.select=last`"]
    return Alarm(
        "uniform",
        f"the attention is nearly uniform {when}, {where}: the effective share is above {FLAT_SHARE:g} "
        f"(median {slides.loc[flat, 'effective_share'].median():.3f}). The model almost averages the tiles. A "
        "small JSD means nothing here, since flat attention cannot move; the ranking of the tiles may still be right.",
        _to_try(proposals),
        some,
    )


def _one_tile(settings: StoredSettings, slides: pd.DataFrame, folds: Mapping[int, str]) -> Alarm | None:
    peaked = slides["max_weight"] > ONE_TILE_WEIGHT
    if (extent := _extent(slides, peaked, folds)) is None:
        return None
    where, some = extent
    proposals = [*_own_rule(settings, ("sparsemax", "entmax")), _more_entropy(settings)]
    return Alarm(
        "one_tile",
        f"one tile gets nearly all the attention {where}: its weight is above {ONE_TILE_WEIGHT:g} (median "
        f"{slides.loc[peaked, 'max_weight'].median():.3f}). The prediction rests on that tile alone; check whether it "
        "shows the lesion or an artifact.",
        _to_try([*proposals, _learn_slower(settings)]),
        some,
    )


def _moving(
    settings: StoredSettings, times: pd.DataFrame, slides: pd.DataFrame, folds: Mapping[int, str]
) -> Alarm | None:
    ended = slides[slides["finished"].astype(bool)]
    moving = (ended["jsd_late"] > MOVING_JSD) & (ended["jsd_relative"] > MOVING_RELATIVE)
    if (extent := _extent(ended, moving, folds)) is None:
        return None
    where, some = extent
    seen = ended[moving]
    apart = times.groupby([*TRAINING, "slide"])["epoch"].diff().median()
    step = "from one epoch to the next" if apart == 1 else f"between recordings {apart:.2g} epochs apart"
    calmer = "use more slides per step with `--set training.accumulate=4`"
    if settings.training.schedule == "constant":
        calmer = "decay the learning rate with `--set training.schedule=cosine`, which settles any model at the end"
    return Alarm(
        "moving",
        f"the attention was still moving when training ended, {where}: {step} the late JSD is "
        f"{seen['jsd_late'].median():.3f} nats, {100 * seen['jsd_relative'].median():.1f} % of ln N - entropy "
        "(medians). The map of another epoch would look different.",
        _to_try([_learn_slower(settings), calmer]),
        some,
    )


def _seeds_disagree(settings: StoredSettings, agreement: pd.DataFrame, *, flat: bool) -> Alarm | None:
    if agreement.empty:
        return None
    alike = agreement.groupby(["fold", "slide"])[["top1_overlap", "rank_correlation"]].mean()
    unlike = (alike["top1_overlap"] < DISAGREEING_OVERLAP) & (alike["rank_correlation"] < DISAGREEING_RANKS)
    if 2 * unlike.sum() <= len(unlike):
        return None
    overlap, ranks = alike.loc[unlike].mean()
    first = ["fix the uniform attention first"] if flat else []
    return Alarm(
        "seeds_disagree",
        f"the seeds disagree about where to look on {unlike.sum()} of {len(unlike)} slides: two seeds share "
        f"{100 * overlap:.0f} % of the top 1 % of tiles (by chance 1 %), and their rank correlation is {ranks:.2f}. "
        "A map depends on the seed.",
        _to_try([*first, "use the mean over seeds, which `asmil predict --attention` writes"]),
    )


def _extent(slides: pd.DataFrame, flags: pd.Series[bool], folds: Mapping[int, str]) -> tuple[str, str] | None:
    """The affected slides and trainings, and `in 1 of 3 trainings` (empty if all are affected), as phrases.

    None unless most slides of at least one training are affected.
    """
    by_training = flags.groupby([slides["fold"], slides["seed"]]).mean()
    named = [f"{folds[fold]} seed {seed}" for fold, seed in by_training.index[by_training > 0.5]]
    if not named:
        return None
    counted = f"{flags.sum()} of {len(flags)}"
    if len(by_training) == 1:
        return f"on {counted} slides", ""
    shown = ", ".join(named[:TRAININGS_NAMED]) + ", ..." * (len(named) > TRAININGS_NAMED)
    some = f"in {len(named)} of {len(by_training)} trainings"
    if len(named) == len(by_training):
        return f"{some} ({counted} slides, counted per training)", ""
    return f"{some} ({shown}; {counted} slides, counted per training)", some


def _to_try(proposals: list[str]) -> str:
    return "Try: " + "; or ".join(proposals) + "."


def _less_flattening(settings: StoredSettings) -> list[str]:
    """Suggestions that weaken the settings that make attention flat."""
    ways = []
    if settings.has_anchor:
        ways.append(f"weaken the anchor with {_scaled(settings, 0.1, 'anchor.weight')}")
    ways += _own_rule(settings, ("nsf", "standardized_nsf", "mixture"))
    if settings.method == "aem":
        ways.append(f"weaken the entropy term with {_scaled(settings, 0.1, 'model.weight')}")
    terms = [name for name in ("entropy", "l2") if settings.weight_of(name)]
    return ways + [
        f"weaken the {name} term with {_scaled(settings, 0.1, f'stabilizers.{name}.weight')}" for name in terms
    ]


def _own_rule(settings: StoredSettings, blamed: tuple[str, ...]) -> list[str]:
    """The suggestion to return to the method's own normalizer, if one of `blamed` replaced it."""
    replaced = settings.attention.normalizer in blamed
    return ["return to the method's own normalizer with `--set attention.normalizer=own`"] if replaced else []


def _more_entropy(settings: StoredSettings) -> str:
    if settings.method == "aem":
        return f"strengthen the entropy term with {_scaled(settings, 10, 'model.weight')}"
    if settings.weight_of("entropy"):
        return f"strengthen the entropy term with {_scaled(settings, 10, 'stabilizers.entropy.weight')}"
    return "add an entropy term, which makes attention flatter: `--stabilizer entropy=0.1`"


def _learn_slower(settings: StoredSettings) -> str:
    return f"lower the learning rate with {_scaled(settings, 1 / 3, 'training.lr')}"


def _scaled(settings: StoredSettings, factor: float, name: str) -> str:
    """A setting multiplied by a factor, as a command-line option with the current value if it is known."""
    now = flattened(settings.model_dump()).get(name)
    if not isinstance(now, int | float):
        return f"another {name}"
    return f"`--set {name}={now * factor:.3g}` (now {now:g})"
