"""Describe the settings of a run: sentences, legends, and the command that reproduces it."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import yaml

from asmil.errors import AsmilError
from asmil.models.base import ModelConfig
from asmil.models.own_method import is_own
from asmil.runs.config import TASK_DEFAULTS, RunConfig, resolve
from asmil.runs.run import Run
from asmil.runs.stored_settings import StoredSettings
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
"""Settings that cannot be given with `--set`."""


def train_command(run: Run, out: str) -> str | None:
    """`asmil train ...` with every setting that differs from the method's preset; None if that is unknown.

    Paths that exist are written in full, so that the command works in every folder.
    """
    config, cohort, method, preset = run.values, run.cohort, str(run.settings.method), str(run.settings.preset)
    if cohort.manifest is None or method.startswith("__main__:"):
        return None
    try:
        default = flat(_preset_config(method, preset, config["task"]["kind"]).model_dump(mode="json"))
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


def _preset_config(method: str, preset: str, kind: str) -> RunConfig:
    """The settings of a preset; for the user's own code, which is not executed here, without the method's own."""
    if not is_own(method):
        return resolve(method, preset, {"task": {"kind": kind}})
    common = {"method": method, "preset": preset, "task": {"kind": kind}, "model": ModelConfig()}
    return parse_settings(RunConfig, merge(TASK_DEFAULTS.get(kind, {}), common))


def _in_full(path: Path) -> str:
    return str(path.absolute() if path.exists() else path)


def _own_in_full(method: str) -> str:
    file, _, attribute = method.rpartition(":")
    return f"{_in_full(Path(file))}:{attribute}" if file.endswith(".py") else method


def _as_yaml(value: Any) -> str:
    """A value as `--set` reads it.

    >>> _as_yaml(1e-05), _as_yaml([0.9, 0.99]), _as_yaml("none"), _as_yaml(None)
    ('1.0e-05', '[0.9, 0.99]', 'none', 'null')
    """
    return yaml.safe_dump([value], default_flow_style=True, width=math.inf, allow_unicode=True).strip()[1:-1]


def run_label(settings: StoredSettings) -> str:
    """The method and the changes to its attention, as a short label for a legend.

    >>> run_label(StoredSettings(method="abmil", preset="paper", anchor={"normalizer": "nsf", "weight": 0.1}))
    'abmil + anchor (nsf, weight 0.1)'
    """
    parts = [settings.method or "unknown"]
    if settings.preset not in (None, "paper"):
        parts[0] += f" ({settings.preset})"
    if settings.attention.normalizer not in (None, "own"):
        parts[0] += f" with {settings.attention.normalizer}"
    if settings.has_anchor:
        weight = settings.anchor.weight
        parts.append(f"anchor ({settings.anchor.normalizer}{'' if weight in (None, 1) else f', weight {weight:g}'})")
    weights = {name: term.weight for name, term in settings.stabilizers.items()}
    return " + ".join(parts + [f"{name} {weight:g}" for name, weight in weights.items() if weight])


def selection_sentence(settings: StoredSettings, role: str, has_validation: bool, metric: str) -> str:
    """How the epoch was selected, and whether on the evaluated data; metric: the default selection metric."""
    rule = settings.training.select
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


def cap_sentence(settings: StoredSettings) -> str:
    """How many tiles training and prediction used."""
    cap = settings.data.max_tiles
    if cap is None:
        return "Training and prediction used all tiles (data.max_tiles is not set)."
    return f"Training used up to {cap} tiles per bag, drawn anew every epoch; prediction used all (data.max_tiles)."


def schedule_sentence(settings: StoredSettings) -> str:
    """The learning-rate schedule of a run, and its effect on the movement of attention at the end."""
    training = settings.training
    if training.schedule is None or training.lr is None:
        return "unknown."
    drops = ", ".join(map(str, training.lr_drops))
    fall = f", times {training.lr_drop_factor or 1:g} after epoch {drops}" if drops else ""
    if training.schedule == "cosine":
        return (
            f"cosine from {training.lr:g} to {training.lr_min:g}{fall}; the steps become so small that any attention "
            "stops moving, so little movement at the end proves little."
        )
    meaning = "any attention moves less after a drop" if drops else "the step size stays the same"
    return f"{training.schedule}, {training.lr:g}{fall}; {meaning}."
