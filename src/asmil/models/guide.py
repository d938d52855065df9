"""Which method to try: by what a user has, with the cost of each method and what was measured of it here.

`data/costs.json` is written from the records of `benchmarks/method_speed.py` by `python docs/tables.py`;
`data/evidence.json` has one line per method that was measured on real data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from asmil.models.registry import Method

NOT_MEASURED = "not measured on real cohorts yet"


@dataclass(frozen=True)
class Situation:
    """What a user has or wants, the methods to try, and why."""

    have: str
    methods: Sequence[str]
    why: str


SITUATIONS = (
    Situation("a new cohort", ("simlp", "abmil"), "the mean of the tiles shows whether attention pays"),
    Situation("fewer than 100 patients", ("linear", "simlp"), "few weights to fit; compare with abmil"),
    Situation("up to 1,000 tiles per slide", ("abmil", "abmilx", "wikg"), "all pairs of tiles are affordable"),
    Situation("over 50,000 tiles per slide", ("simlp", "abmil", "asmil"), "slides are read in chunks"),
    Situation(
        "few tiles that matter", ("abmil", "clam_sb", "additive_mil"), "means miss ten in 1,000: docs/real_tissue.md"
    ),
    Situation("coordinates of the tiles", ("sm_abmil", "patch_gcn", "mamba_mil"), "neighbors count"),
    Situation("no coordinates", ("abmil", "wikg", "transmil"), "similar tiles, or their order, replace neighbors"),
    Situation("survival times", ("abmil", "simple_mil", "deepattnmisl"), "--preset survival; deepattnmisl: official"),
    Situation("labels or values, not classes", ("simlp", "abmil"), "no term of their loss needs a class"),
    Situation("a use for maps that add up", ("additive_mil", "simlp", "caprmil"), "contributions, with a sign"),
    Situation("a use for uncertainties", ("simple_mil",), "its windows of channels disagree where it is unsure"),
    Situation(
        "a use for steady attention", ("asmil",), "an anchor holds it; nearly flat on real tissue: docs/real_tissue.md"
    ),
)


@dataclass(frozen=True)
class Cost:
    """Time on a CPU in units of abmil's, and megabytes for a slide of 100,000 tiles besides its features.

    None: not measured
    """

    prediction: float | None = None
    training: float | None = None
    megabytes: float | None = None


@cache
def cost_of(name: str) -> Cost:
    """The recorded cost of a method."""
    return Cost(**_data("costs")["methods"].get(name, {}))


def evidence_of(name: str) -> str:
    """One line on what was measured of a method on real data, in this repository."""
    return str(_data("evidence").get(name, NOT_MEASURED))


def guide_rows() -> list[list[str]]:
    """The situations: what a user has, methods with their costs, why."""
    return [[each.have, ", ".join(map(_with_cost, each.methods)), each.why] for each in SITUATIONS]


def method_row(method: Method) -> list[str]:
    """Name, what it does, cost of prediction and of training, memory, and evidence."""
    cost = cost_of(method.name)
    megabytes = "" if cost.megabytes is None else f"{cost.megabytes:,.0f}"
    return [
        *(method.name, method.summary, factor(cost.prediction), factor(cost.training), megabytes),
        evidence_of(method.name),
    ]


def units() -> str:
    """What a factor of 1 means."""
    abmil = _data("costs")["abmil"]
    return (
        f"x: time of a slide of {abmil['tiles']:,} tiles relative to abmil's, which takes "
        f"{1e3 * abmil['prediction_s']:.0f} ms to predict and {1e3 * abmil['training_s']:.0f} ms to train on "
        f"{abmil['threads']} CPU cores"
    )


def factor(ratio: float | None) -> str:
    """A ratio with one or two digits, such as 0.04x, 2.6x or 23x; empty if unknown."""
    if ratio is None:
        return ""
    return f"{ratio:.{0 if ratio >= 9.5 else 1 if ratio >= 0.095 else 2}f}x"


def _with_cost(name: str) -> str:
    shown = factor(cost_of(name).prediction)
    return f"{name} ({shown})" if shown else name


@cache
def _data(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("asmil.models").joinpath(f"data/{name}.json").read_text("utf-8"))
    return content
