"""The settings of methods on small benchmark sets: one hidden width and one training recipe, not tuned to a set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asmil.classic.baselines import BASELINES
from asmil.errors import AsmilError, did_you_mean
from asmil.models import methods
from asmil.runs.config import RunConfig, preset_names, resolve
from asmil.settings.config import flat, merge

HIDDEN = 32
TRAINING: dict[str, Any] = {
    "epochs": 40,
    "lr": 5e-4,
    "optimizer": "adam",
    "weight_decay": 0.0,
    "schedule": "constant",
    "accumulate": 1,
    "select": "last",
    "device": "cpu",
}
_WIDE: dict[str, Any] = {"inner": HIDDEN}
_TWO_LAYERS: dict[str, Any] = {"inner": HIDDEN, "embedding_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "asmil": {"inner": HIDDEN, "tokens": 8, "heads": 4},
    "abmil": {"inner": HIDDEN, "attention": HIDDEN},
    "dsmil": {"query_width": HIDDEN},
    "transmil": {"inner": HIDDEN, "heads": 4},
    "rgmil": _TWO_LAYERS,
    "psmil": _TWO_LAYERS,
    "demil": _TWO_LAYERS,
    "mean_pooling": _WIDE,
    "max_pooling": _WIDE,
}
"""What differs from a method's own defaults; a method that is not here gets `inner`, if it has such a setting."""

DEFAULT_METHODS = (*MODELS, *BASELINES)
USED = ("model", "training", "attention", "anchor", "stabilizers")
"""The sections of the settings that the benchmark uses."""
_ELSEWHERE = {"folds": "--folds", "seeds": "--seeds", "training.seed": "--seed"}


@dataclass(frozen=True)
class Contender:
    """A row of the table: a method with settings. config: None for a baseline, which is not trained by steps."""

    method: str
    preset: str
    config: RunConfig | None

    @property
    def name(self) -> str:
        return self.method if self.preset == "paper" or self.config is None else f"{self.method} ({self.preset})"

    @property
    def file_name(self) -> str:
        return self.method if self.preset == "paper" or self.config is None else f"{self.method}-{self.preset}"

    def settings(self) -> dict[str, Any]:
        """Everything that determines its numbers, except data and seed, by dotted name."""
        if self.config is None:
            return dict(BASELINES[self.method].settings)
        tree = self.config.model_dump(mode="json")
        values = flat({part: tree[part] for part in USED})
        return {name: value for name, value in values.items() if name not in ("training.seed", "training.device")}


def contenders(names: Iterable[str], presets: Iterable[str], changes: Mapping[str, Any]) -> list[Contender]:
    """Every method with every preset that it has; a preset that changes nothing does not give it a second row."""
    for setting, option in _ELSEWHERE.items():
        if setting in flat(changes):
            raise AsmilError(f"--set {setting}: the benchmark makes its own folds and seeds; give {option}")
    for setting in flat(changes):
        if setting.partition(".")[0] not in USED:
            raise AsmilError(f"--set {setting}: the benchmark does not use it; it takes settings of {', '.join(USED)}")
    known = [*methods(), *BASELINES]
    rows: list[Contender] = []
    for name in dict.fromkeys(names):
        if name not in known:
            raise AsmilError(f"there is no method {name!r}: {did_you_mean(name, known)}")
        if name in BASELINES:
            rows.append(Contender(name, "", None))
            continue
        seen: list[dict[str, Any]] = []
        asked = list(dict.fromkeys(presets))
        for preset in [preset for preset in asked if preset in preset_names(methods()[name])] or asked:
            row = Contender(name, preset, _resolve(name, preset, changes))
            if row.settings() not in seen:
                seen.append(row.settings())
                rows.append(row)
    return rows


def _resolve(method: str, preset: str, changes: Mapping[str, Any]) -> RunConfig:
    fields = methods()[method].model.config_type.model_fields
    model = MODELS.get(method, _WIDE if "inner" in fields else {})
    return resolve(method, preset, merge({"training": TRAINING, "model": model}, changes))
