"""Describe the settings of a run: sentences, legends, and the command that reproduces it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asmil.errors import AsmilError
from asmil.models.base import ModelConfig
from asmil.models.own_method import is_own
from asmil.runs.cohort import RunCohort
from asmil.runs.config import TASK_DEFAULTS, RunConfig, resolve
from asmil.runs.run import setting
from asmil.settings.config import flat, merge, parse_settings
from asmil.tables.columns import format_mapping

OPTIONS = {
    "task.kind": "--task",
    "task.time_unit": "--time-unit",
    "folds": "--folds",
    "seeds": "--seeds",
    "training.seed": "--seed",
    "nested.folds": "--inner-folds",
}
"""Settings that have a command-line option."""
GRID = "nested.grid."
NOT_SET = ("method", "preset", "init.weights", *OPTIONS)
"""Settings that `--set` does not give."""


def train_command(config: Mapping[str, Any], out: str) -> str | None:
    """`asmil train ...` with every setting that differs from the method's preset; None if it cannot be given.

    Paths that exist are written in full, so that the command works in every folder.

    config: the values of a run's `config.yaml`
    """
    cohort, method, preset = RunCohort.of(config), str(config.get("method")), str(config.get("preset"))
    if cohort.manifest is None or method.startswith("__main__:"):
        return None
    try:
        default = flat(_usual(method, preset, config["task"]["kind"]).model_dump(mode="json"))
        columns = format_mapping(cohort.columns or {})
    except (AsmilError, KeyError, TypeError):
        return None
    default["task.kind"] = RunConfig.model_fields["task"].default.kind
    words = ["asmil", "train", _in_full(cohort.manifest), "--method", _own_in_full(method), "--preset", preset]
    words += [] if cohort.features is None else ["--features", _in_full(cohort.features)]
    words += ["--columns", columns] if columns else []
    for name, value in flat({name: config[name] for name in RunConfig.model_fields if name in config}).items():
        of_own_code = name.startswith("model.") and is_own(method)
        if name in OPTIONS and value != default[name]:
            words += [OPTIONS[name], str(value)]
        elif name.startswith(GRID):
            words += ["--grid", f"{name.removeprefix(GRID)}={_as_yaml(value)}"]
        elif name == "init.weights" and value is not None:
            words += ["--init", _in_full(Path(str(value)))]
        elif of_own_code or (name in default and name not in NOT_SET and value != default[name]):
            words += ["--set", f"{name}={_as_yaml(value)}"]
    return shlex.join([*words, "--out", out])


def _usual(method: str, preset: str, kind: str) -> RunConfig:
    """The settings of a method before any change; if it is code, which is not executed here, without its own."""
    if not is_own(method):
        return resolve(method, preset, {"task": {"kind": kind}})
    common = {"method": method, "preset": preset, "task": {"kind": kind}, "model": ModelConfig()}
    return parse_settings(RunConfig, merge(TASK_DEFAULTS.get(kind, {}), common))


def _in_full(path: Path) -> str:
    return str(path.absolute() if path.exists() else path)


def _own_in_full(method: str) -> str:
    place, _, attribute = method.rpartition(":")
    return f"{_in_full(Path(place))}:{attribute}" if place.endswith(".py") else method


def _as_yaml(value: Any) -> str:
    """A value as `--set` reads it.

    >>> _as_yaml(1e-05), _as_yaml([0.9, 0.99]), _as_yaml("none"), _as_yaml(None)
    ('1.0e-05', '[0.9, 0.99]', 'none', 'null')
    """
    return yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True).strip()[1:-1]


def run_label(config: Mapping[str, Any]) -> str:
    """The method and the changes to its attention, as a short label for a legend.

    >>> run_label({"method": "abmil", "preset": "paper", "anchor": {"normalizer": "nsf", "weight": 0.1}})
    'abmil + anchor (nsf, weight 0.1)'
    """
    parts = [str(config.get("method") or "unknown")]
    preset = config.get("preset")
    if preset not in (None, "paper"):
        parts[0] += f" ({preset})"
    rule = setting(config, "attention", "normalizer")
    if rule not in (None, "own"):
        parts[0] += f" with {rule}"
    if has_anchor(config):
        weight = setting(config, "anchor", "weight")
        weighted = "" if weight in (None, 1) else f", weight {weight:g}"
        parts.append(f"anchor ({setting(config, 'anchor', 'normalizer')}{weighted})")
    weights = {name: setting(config, "stabilizers", name, "weight") for name in config.get("stabilizers") or {}}
    return " + ".join(parts + [f"{name} {weight:g}" for name, weight in weights.items() if weight])


def has_anchor(config: Mapping[str, Any]) -> bool:
    """Whether a run was trained with an anchor."""
    return setting(config, "anchor", "normalizer") not in (None, "none") and setting(config, "anchor", "weight") != 0


def selection_sentence(config: Mapping[str, Any], role: str, has_validation: bool, metric: str) -> str:
    """How the epoch was selected, and whether on the evaluated data; metric: the default selection metric."""
    rule = setting(config, "training", "select")
    if rule is None:
        return "It is unknown which epoch was kept (training.select is not set)."
    if rule == "last":
        return "The last epoch was kept, without selection on validation data (training.select: last)."
    if not has_validation:
        return "The run had no validation set, so the last epoch was kept."
    chosen = "the lowest loss" if rule == "loss" else f"the highest {metric}"
    sentence = f"The epoch was chosen on the validation set, by {chosen}"
    if role == "val":
        return f"{sentence}. These numbers come from the same slides, so they are optimistic."
    return f"{sentence}; the test set was not used."


def cap_sentence(config: Mapping[str, Any]) -> str:
    """How many tiles training and prediction used."""
    cap = setting(config, "data", "max_tiles")
    if cap is None:
        return "Training and prediction used all tiles (data.max_tiles is not set)."
    return f"Training used up to {cap} tiles per bag, drawn anew every epoch; prediction used all (data.max_tiles)."


def schedule_sentence(config: Mapping[str, Any]) -> str:
    """The learning-rate schedule of a run, and its effect on the movement of attention at the end."""
    schedule, lr = setting(config, "training", "schedule"), setting(config, "training", "lr")
    if schedule is None or lr is None:
        return "unknown."
    drops = setting(config, "training", "lr_drops") or []
    factor = setting(config, "training", "lr_drop_factor")
    fall = f", times {factor} after epoch {', '.join(map(str, drops))}" if drops else ""
    if schedule == "cosine":
        return (
            f"cosine from {lr:g} to {setting(config, 'training', 'lr_min') or 0:g}{fall}; the steps become so small "
            "that any attention stops moving, so little movement at the end proves little."
        )
    meaning = "any attention moves less after a drop" if drops else "the step size stays the same"
    return f"{schedule}, {lr:g}{fall}; {meaning}."
