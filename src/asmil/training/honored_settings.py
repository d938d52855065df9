"""Which settings an executor honors: what it does not declare must have its default, or the plain loop trains.

A new setting is thus refused by every executor until someone declares it there, with a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from pydantic import BaseModel

from asmil.runs.config import RunConfig
from asmil.settings.config import flat


def _of(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


NOT_ABOUT_STEPS = (
    *("method", "preset", "folds", "seeds", "nested.*", "task.*", "record.*", "init.*"),
    *_of("data", "cache val_share test_share unit leave_out"),
    *_of("training", "seed device executor checkpoint_seconds track select early_stopping early_stopping_from"),
)
"""Settings that have no effect on a step: the training loop, or what starts it, honors them."""

SCHEDULE = _of("training", "epochs lr lr_min lr_drops lr_drop_factor schedule warmup_epochs")
NORMALIZED = "normalizer temperature alpha kappa offset"

LOCKSTEP = (
    *("model.*", "attention.*", *SCHEDULE),
    *_of("training", "optimizer betas weight_decay decay clip_norm precision"),
    *_of("anchor", f"{NORMALIZED} momentum weight update start divergence reduction both_sides"),
    *(f"stabilizers.{name}.*" for name in ("features", "entropy", "entropy_floor", "l2")),
)
"""Trainings side by side; precision is fp32 there, whatever is asked for."""

GRAPHED = (
    *("model.*", "attention.*", *SCHEDULE),
    *_of("training", "optimizer betas weight_decay decay clip_norm precision batch class_weights sampling"),
    *_of("anchor", f"{NORMALIZED} momentum weight update start divergence reduction both_sides"),
    *_of("stabilizers", "temporal.rate features.momentum features.teacher_temperature features.student_temperature"),
    "stabilizers.entropy_floor.floor",
)
"""Recorded steps (CUDA graphs). Stabilizers other than the anchor have the weight 0, and their settings no effect."""

FUSED = (
    *_of("model", "inner tokens heads drop dropout init_std cls_zero mil_dropout_neighbors"),
    *SCHEDULE,
    *_of("training", "betas weight_decay precision class_weights sampling"),
    *_of("anchor", "normalizer alpha kappa offset momentum weight update start"),
    *_of("stabilizers", "temporal.rate features.momentum features.teacher_temperature features.student_temperature"),
    "stabilizers.entropy_floor.floor",
)
"""Fused kernels of ASMIL."""


def undeclared(config: RunConfig, honored: Sequence[str]) -> str | None:
    """The first changed setting that an executor does not declare; None if there is none."""
    known = (*honored, *NOT_ABOUT_STEPS)
    return next((name for name in changed_settings(config) if not declared(name, known)), None)


def declared(name: str, honored: Sequence[str]) -> bool:
    """Whether a setting is in a declaration, by its name or by a pattern."""
    return any(fnmatch(name, pattern) for pattern in honored)


def changed_settings(config: RunConfig) -> Iterator[str]:
    """The settings that do not have the default of their section."""
    for section, field in RunConfig.model_fields.items():
        values = getattr(config, section)
        if isinstance(values, BaseModel):
            now, usual = (flat({section: one.model_dump(mode="json")}) for one in (values, type(values)()))
            yield from (name for name, value in now.items() if value != usual.get(name))
        elif field.is_required() or values != field.default:
            yield section
