"""The command that trains a run again, from its settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from asmil.config import flat
from asmil.errors import AsmilError
from asmil.training.config import RunConfig, resolve

OPTIONS = {
    "task.kind": ("--task", "classification"),
    "folds": ("--folds", 1),
    "seeds": ("--seeds", 1),
    "training.seed": ("--seed", 0),
    "nested.folds": ("--inner-folds", 0),
}
"""Settings with an option of their own, and its default."""


def train_command(config: Mapping[str, Any], out: str) -> str | None:
    """`asmil train ...` with every setting that differs from those of the method and preset; None if unknown.

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
