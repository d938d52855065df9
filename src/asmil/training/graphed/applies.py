"""Which settings, tasks and machines support steps recorded as CUDA graphs."""

from __future__ import annotations

import torch

from asmil.models.base import MILModel
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification
from asmil.training.config import RunConfig


def machine_reason(device: torch.device) -> str | None:
    """Why this machine cannot use CUDA graphs, or None if it can."""
    return None if device.type == "cuda" else f"the device is {device.type}, not a CUDA GPU"


def settings_reason(config: RunConfig, model: MILModel, task: Task) -> str | None:
    """Why a training with these settings needs the plain executor, or None if a recorded step computes the same."""
    if any(stage.model.padding_from is None for stage in model.stages()):
        return f"the bags of {config.method} with these settings cannot be padded"
    if not isinstance(task, Classification):
        return "it supports only classification"
    unfit = [name for name, fits in _demands(config, model).items() if not fits]
    return f"it does not support {unfit[0]}" if unfit else None


def _demands(config: RunConfig, model: MILModel) -> dict[str, bool]:
    """The assumptions of a recorded step, by setting."""
    training, stabilizers = config.training, config.stabilizers
    others = [getattr(stabilizers, name).weight for name in type(stabilizers).model_fields]
    routed = model.label_routes_gradients and training.batch > 1
    return {
        "a method whose steps differ from each other": all(stage.model.steps_alike for stage in model.stages()),
        f"training.batch = {training.batch} with {config.method}": not routed,
        f"training.accumulate = {training.accumulate}": training.accumulate == 1,
        f"training.optimizer = {training.optimizer}": training.optimizer in ("adam", "adamw"),
        f"anchor.rows = {config.anchor.rows}": config.anchor.rows == "all",
        # the entmax package copies a number from the CPU in every call, which CUDA graphs do not allow
        "the normalizer entmax": "entmax" not in (config.anchor.normalizer, config.attention.normalizer),
        "anchor.ramp_epochs": config.anchor.ramp_epochs == 0,
        "anchor.gradient_share": config.anchor.gradient_share is None,
        "other stabilizers": not any(others),
        "data.max_tiles": config.data.max_tiles is None,
        f"record.every = {config.record.every}": config.record.attention == "none" or config.record.every == "epoch",
    }
