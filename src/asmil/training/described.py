"""Describe the settings of a run: sentences, legends, and the command that reproduces it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from asmil.config import flat
from asmil.errors import AsmilError
from asmil.training.config import RunConfig, resolve
from asmil.training.finished_run import setting

OPTIONS = {
    "task.kind": ("--task", "classification"),
    "folds": ("--folds", 1),
    "seeds": ("--seeds", 1),
    "training.seed": ("--seed", 0),
    "nested.folds": ("--inner-folds", 0),
}
"""Settings that have a command-line option, and its default."""


def train_command(config: Mapping[str, Any], out: str) -> str | None:
    """`asmil train ...` with every setting that differs from the method's preset; None if unknown.

    config: the values of a run's `config.yaml`
    """
    try:
        method, preset, manifest = config["method"], config["preset"], config["cohort"]["manifest"]
        usual = resolve(method, preset, {"task": {"kind": config["task"]["kind"]}})
    except (AsmilError, KeyError, TypeError):
        return None
    words = ["asmil", "train", str(manifest), "--method", method, "--preset", preset]
    default = flat(usual.model_dump(mode="json"))
    known = {name: value for name, value in config.items() if name in RunConfig.model_fields}
    for name, value in flat(known).items():
        if name in OPTIONS:
            option, plain = OPTIONS[name]
            words += [] if value == plain else [option, str(value)]
        elif name not in ("method", "preset", "task.classes") and default.get(name, value) != value:
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join([*words, "--out", out])


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
