"""What each executor honors: settings, tasks and methods; what it does not honor, the plain loop trains.

A setting that an executor does not declare must have its default there. A new setting is thus refused by every executor
until someone declares it here, with a test. This module imports no Triton.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from pydantic import BaseModel

from asmil.machine.bf16 import has_bf16
from asmil.models.asmil import ASMIL
from asmil.models.base import MILModel
from asmil.runs.config import RunConfig
from asmil.settings.config import flat
from asmil.tasks.base import Task, TaskKind
from asmil.tasks.classification import Classification

MOST_ROWS = 128
STEP_OF_WIDTHS = 16


def _of(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


NOT_ABOUT_STEPS = (
    *("method", "preset", "folds", "seeds", "nested.*", "task.*", "record.*", "init.*"),
    *_of("data", "cache val_share test_share unit leave_out splits"),
    *_of("training", "seed device executor checkpoint_seconds track select early_stopping early_stopping_from"),
)
"""Settings that have no effect on a step: the training loop, or what starts it, honors them."""

SCHEDULE = _of("training", "epochs lr lr_min lr_drops lr_drop_factor schedule warmup_epochs")
MAY_DIFFER = (*SCHEDULE, *_of("training", "weight_decay seed select early_stopping early_stopping_from"))
"""Settings in which trainings side by side may differ: each training has its own schedule, decay and end."""
ANCHOR = _of("anchor", "normalizer alpha kappa offset momentum weight update start")
ANY_ANCHOR = (*ANCHOR, *_of("anchor", "temperature divergence reduction both_sides"))
WITHOUT_WEIGHT = (
    *_of("stabilizers", "temporal.rate features.momentum features.teacher_temperature features.student_temperature"),
    "stabilizers.entropy_floor.floor",
)
"""Settings of stabilizers that have no effect as long as the weight of the stabilizer is 0."""


@dataclass(frozen=True)
class Honored:
    """What an executor computes like the plain loop.

    settings: names and patterns of the settings that it honors, in addition to `NOT_ABOUT_STEPS`
    tasks: the kinds of tasks
    methods: the classes of models; None: every method within the limits
    limits: further limits of settings, model and task: what is not supported -> whether it is kept
    machine: why a device cannot be used, or None if it can
    """

    settings: tuple[str, ...]
    tasks: tuple[TaskKind, ...]
    methods: tuple[type[MILModel], ...] | None
    limits: Callable[[RunConfig, MILModel, Task], Mapping[str, bool]]
    machine: Callable[[torch.device], str | None] = lambda device: None

    def reason(self, config: RunConfig, model: MILModel, task: Task) -> str | None:
        """Why another executor must train this, or None if this one computes the same as the plain loop."""
        unfit = self.undeclared(config)
        if self.methods is not None and type(model) not in self.methods:
            unfit = f"the method {config.method}"
        elif task.kind not in self.tasks:
            unfit = f"the task {task.kind}"
        elif unfit is not None:
            unfit = f"{unfit} = {flat(config.model_dump(mode='json'))[unfit]}"
        else:
            with torch.random.fork_rng(devices=[]):  # stages are built to be looked at
                limits = self.limits(config, model, task)
            unfit = next((limit for limit, kept in limits.items() if not kept), None)
        return None if unfit is None else f"it does not support {unfit}"

    def undeclared(self, config: RunConfig) -> str | None:
        """The first changed setting that is not declared; None if there is none."""
        known = (*self.settings, *NOT_ABOUT_STEPS)
        return next((name for name in changed_settings(config) if not declared(name, known)), None)


def declared(name: str, honored: Sequence[str]) -> bool:
    """Whether a setting is in a declaration, by its name or by a pattern."""
    return any(fnmatch(name, pattern) for pattern in honored)


def changed_settings(config: RunConfig) -> Iterator[str]:
    """The settings that do not have the default of their section."""
    for section, field in RunConfig.model_fields.items():
        values = getattr(config, section)
        if isinstance(values, BaseModel):
            now, usual = (flat({section: part.model_dump(mode="json")}) for part in (values, type(values)()))
            yield from (name for name, value in now.items() if value != usual.get(name))
        elif field.is_required() or values != field.default:
            yield section


def _recorded_by_epoch(config: RunConfig) -> dict[str, bool]:
    return {
        f"record.every = {config.record.every}": config.record.attention == "none" or config.record.every == "epoch"
    }


def _side_by_side_limits(config: RunConfig, model: MILModel, task: Task) -> dict[str, bool]:
    return {
        "methods that prepare their bags": model.tile_tables is not None,
        f"task.loss = {task.loss_name}, which compares the bags of a step": not task.joint,
        f"several bags per step of {config.method}, whose bags cannot be padded": (
            config.training.bags_per_step == 1 or model.padding_from is not None
        ),
        **_recorded_by_epoch(config),
    }


def _graphed_limits(config: RunConfig, model: MILModel, task: Task) -> dict[str, bool]:
    training, stages = config.training, [stage.model for stage in model.stages()]
    routed = model.label_routes_gradients and training.batch > 1
    return {
        f"{config.method} with these settings: its bags cannot be padded": all(
            part.batch_from is not None for part in stages
        ),
        f"{config.method}, whose steps are not recorded": all(part.records_steps for part in stages),
        "methods whose steps differ from each other": all(part.steps_alike for part in stages),
        f"training.batch = {training.batch} with {config.method}": not routed,
        f"training.optimizer = {training.optimizer}": training.optimizer in ("adam", "adamw"),
        # the entmax package copies a number from the CPU in every call, which CUDA graphs do not allow
        "the normalizer entmax": "entmax" not in (config.anchor.normalizer, config.attention.normalizer),
        **_recorded_by_epoch(config),
    }


def _fused_limits(config: RunConfig, model: MILModel, task: Task) -> dict[str, bool]:
    assert isinstance(model, ASMIL)
    assert isinstance(task, Classification)
    anchor, precision = config.anchor, config.training.precision
    rows, inner = model.config.tokens * model.config.heads, model.tokens.shape[1]
    is_power = 16 <= rows <= MOST_ROWS and not rows & rows - 1
    return {
        "classification with a single output": not task.single_output,
        "an embedding that is not one ReLU layer": model.embedding.weight_of_single_layer() is not None,
        f"{rows} rows of scores (a power of two from 16 to {MOST_ROWS})": is_power,
        f"{model.in_features} features and inner width {inner} (multiples of {STEP_OF_WIDTHS})": not (
            model.in_features % STEP_OF_WIDTHS or inner % STEP_OF_WIDTHS
        ),
        f"anchor.normalizer = {anchor.normalizer}": anchor.normalizer in ("nsf", "none"),
        f"anchor.update = {anchor.update}": anchor.update != "epoch",
        f"training.precision = {precision}": precision != "fp32",
        **_recorded_by_epoch(config),
    }


def _graphed_machine(device: torch.device) -> str | None:
    return None if device.type == "cuda" else f"the device is {device.type}, not a CUDA GPU"


def _fused_machine(device: torch.device) -> str | None:
    reason = _graphed_machine(device)
    if reason is None and importlib.util.find_spec("triton") is None:
        reason = "Triton is not installed"
    return reason or (None if has_bf16(device) else "the GPU has no bf16")


SIDE_BY_SIDE = Honored(
    settings=(
        *("model.*", "attention.*", *SCHEDULE, *ANY_ANCHOR),
        *_of(
            "training", "accumulate optimizer betas weight_decay decay clip_norm precision class_weights sampling ema"
        ),
        *(f"stabilizers.{name}.*" for name in ("features", "entropy", "entropy_floor", "l2")),
    ),
    tasks=("classification", "survival", "regression", "multilabel"),
    methods=None,
    limits=_side_by_side_limits,
)
"""Many small trainings at once. Whether torch can stack a method is tried before its first step."""

GRAPHED = Honored(
    settings=(
        *("model.*", "attention.*", *SCHEDULE, *ANY_ANCHOR, *WITHOUT_WEIGHT),
        *_of("training", "optimizer betas weight_decay decay clip_norm precision batch class_weights sampling"),
    ),
    tasks=("classification",),
    methods=None,
    limits=_graphed_limits,
    machine=_graphed_machine,
)
"""Recorded steps (CUDA graphs)."""

FUSED = Honored(
    settings=(
        *_of("model", "inner tokens heads drop dropout init_std cls_zero mil_dropout_neighbors"),
        *(*SCHEDULE, *ANCHOR, *WITHOUT_WEIGHT),
        *_of("training", "betas weight_decay precision class_weights sampling"),
    ),
    tasks=("classification",),
    methods=(ASMIL,),
    limits=_fused_limits,
    machine=_fused_machine,
)
"""Fused kernels of ASMIL."""

HONORED = {"fused": FUSED, "graphed": GRAPHED, "side_by_side": SIDE_BY_SIDE}
