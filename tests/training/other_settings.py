"""Every setting with another value than its default, and what it takes for that value to have an effect."""

from __future__ import annotations

from typing import get_args

from asmil.runs.config import RunConfig, resolve
from asmil.settings.config import flat

NEEDED = {
    "anchor": {"anchor.normalizer": "nsf", "anchor.weight": 20.0, "anchor.momentum": 0.5},
    "training.decay": {"training.weight_decay": 0.3},
    "attention": {"attention.normalizer": "nsf"},
    **{
        f"{section}.{name}": {f"{section}.normalizer": rule}
        for section in ("anchor", "attention")
        for name, rule in {"alpha": "entmax", "kappa": "standardized_nsf", "offset": "standardized_nsf"}.items()
    },
    "anchor.ramp_momentum": {"anchor.ramp_epochs": 5},
    "stabilizers.temporal": {"stabilizers.temporal.weight": 20.0},
    "stabilizers.features": {"stabilizers.features.weight": 1.0},
    "stabilizers.entropy_floor": {"stabilizers.entropy_floor.weight": 20.0, "stabilizers.entropy_floor.floor": 0.999},
    "training.lr_drop_factor": {"training.lr_drops": [1]},
    "training.early_stopping_from": {"training.early_stopping": 1},
}
"""Other settings with which a setting, or all of a section, has an effect."""
OTHER_VALUES = {
    "training.epochs": 3,
    "training.lr": 0.04,
    "training.weight_decay": 0.3,
    "training.betas": [0.5, 0.9],
    "training.lr_drops": [1],
    "training.clip_norm": 0.01,
    "training.warmup_epochs": 1.0,
    "training.device": "cpu",
    "training.early_stopping": 1,
    "training.lr_min": 5e-3,
    "anchor.alpha": 1.7,
    "attention.alpha": 1.7,
    "anchor.ramp_epochs": 5,
    "anchor.ramp_momentum": 0.1,
    "anchor.momentum": 0.9,
    "record.every": 5,
    "stabilizers.temporal.weight": 20.0,
    "stabilizers.entropy_floor.weight": 20.0,
    "stabilizers.entropy_floor.floor": 0.999,
    "anchor.gradient_share": 0.01,
    "data.max_tiles": 3,
}
NO_OTHER_VALUE = {
    "task.kind",
    "task.bins",
    "task.last_edge",
    "task.risk",
    "task.loss",
    "task.binning",
    "task.time_unit",
}
NO_OTHER_VALUE |= {"init.weights", "init.sha256", "nested.folds", "training.track", "training.executor", "task.alpha"}
NO_OTHER_VALUE |= {"anchor.rows", "anchor.divergence", "data.covariates", "data.splits"}
NO_OTHER_VALUE |= {f"smoothing.{name}" for name in ("where", "alpha", "train_alpha", "steps", "exact")}
"""Settings of other tasks, of whole runs and of manifests, which these trainings do not take. Rows of tokens have their
own test, the other divergence has the same gradients, and smoothing needs coordinates."""


def every_setting() -> list[str]:
    return [name for name in flat(resolve("abmil").model_dump(mode="json")) if "." in name and "model." not in name]


def other_values(name: str) -> list:
    """Values that are not the default: all the others of a choice."""
    section, *path = name.split(".")
    kind = RunConfig.model_fields[section].annotation
    for part in path:
        field = kind.model_fields[part]
        kind = field.annotation
    if name in OTHER_VALUES:
        return [OTHER_VALUES[name]]
    choices = get_args(kind) or (get_args(kind.__value__) if hasattr(kind, "__value__") else ())
    if choices and all(isinstance(one, str) for one in choices):
        return [one for one in choices if one != field.default]
    if isinstance(field.default, bool):
        return [not field.default]
    return [field.default + 1] if isinstance(field.default, int) else [field.default * 0.5 or 0.5]


def nested(values: dict) -> dict:
    """Values by dotted names as nested sections."""
    sections: dict = {}
    for name, value in values.items():
        *path, last = name.split(".")
        section = sections
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return sections


def needed_by(name: str) -> dict:
    """The other settings with which a setting has an effect, by their dotted names."""
    needed = {}
    for start, values in NEEDED.items():
        if name == start or name.startswith(f"{start}."):
            needed |= {key: value for key, value in values.items() if key != name}
    return needed
