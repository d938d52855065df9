"""The candidates: registered methods with settings, the simplest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from asmil.errors import AsmilError, did_you_mean
from asmil.models.own_method import is_own
from asmil.models.registry import find_method, methods
from asmil.runs.config import RunConfig, resolve
from asmil.settings.config import assign

LINEAR, MEAN = "linear", "mean_pooling"
DECIDED = (
    "folds",
    "seeds",
    "nested",
    "task",
    "record",
    "data.val_share",
    "data.test_share",
    "data.leave_out",
    "data.splits",
    "init",
)
"""Settings, or sections of them, that the search decides itself."""


@dataclass(frozen=True)
class Candidate:
    """A method with a preset and further settings, by dotted name."""

    name: str
    method: str
    title: str = ""
    preset: str = "paper"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.title or self.name

    @property
    def attends(self) -> bool:
        """Whether the method weights tiles by attention."""
        return bool(find_method(self.method).model.score_axes)

    def config(self, common: Mapping[str, Any], share: float = 1.0) -> RunConfig:
        """All settings of a training; share: of the epochs that the settings ask for, at least one epoch."""
        settings = {**self.settings, **common}
        epochs = resolve(self.method, self.preset, assign({}, settings)).training.epochs
        settings["training.epochs"] = max(1, round(share * epochs))
        return resolve(self.method, self.preset, assign({}, settings))


LADDER = (
    Candidate(LINEAR, "linear", "linear probe"),
    Candidate(MEAN, "mean_pooling", "mean pooling"),
    Candidate("abmil", "abmil", "ABMIL"),
    Candidate("clam_sb", "clam_sb", "CLAM-SB"),
    Candidate("asmil", "asmil", "ASMIL without anchor", "no_anchor"),
    Candidate("asmil_anchor", "asmil", "ASMIL with anchor", settings={"model.init_std": 1.0, "model.drop": 0.0}),
    Candidate("transmil", "transmil", "TransMIL"),
)
"""What is tried by default. The first two are always trained: attention is compared with them."""


def candidates_of(names: Sequence[str] = ()) -> tuple[Candidate, ...]:
    """The candidates by name, or all of the ladder; methods outside the ladder are tried with preset `paper`."""
    by_name = {candidate.name: candidate for candidate in LADDER}
    chosen = {name: by_name[name] for name in (LINEAR, MEAN)}
    for name in names or by_name:
        if name not in by_name and not is_own(name) and name not in methods():
            raise AsmilError(f"there is no candidate {name!r}: {did_you_mean(name, {**by_name, **methods()})}")
        chosen[name] = by_name.get(name) or Candidate(name, name)
    return tuple(chosen.values())


def refuse_decided(settings: Mapping[str, Any]) -> None:
    """Raise for settings that the search decides, and for covariates, which it does not use."""
    for name in settings:
        if name == "data.covariates":
            raise AsmilError(
                f"--set {name}: `asmil auto` does not use covariates; leave them out, and train the method that it "
                "chooses with `asmil train --covariates`"
            )
        if any(name == decided or name.startswith(f"{decided}.") for decided in DECIDED):
            raise AsmilError(f"--set {name}: `asmil auto` decides this itself; leave it out, or use `asmil train`")
