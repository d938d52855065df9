"""For which settings, tasks and machines fused kernels or CUDA graphs replace plain steps; imports no Triton."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import torch

from asmil.attention.normalizers import Softmax
from asmil.machine.bf16 import has_bf16
from asmil.models.asmil import ASMIL
from asmil.models.base import MILModel
from asmil.runs.config import RunConfig
from asmil.settings.config import flat
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification
from asmil.training.honored_settings import FUSED, GRAPHED, undeclared

MOST_ROWS = 128
STEP_OF_WIDTHS = 16


def graphed_machine_reason(device: torch.device) -> str | None:
    """Why this machine cannot use CUDA graphs, or None if it can."""
    return None if device.type == "cuda" else f"the device is {device.type}, not a CUDA GPU"


def fused_machine_reason(device: torch.device) -> str | None:
    """Why this machine cannot use fused kernels, or None if it can."""
    reason = graphed_machine_reason(device)
    if reason is None and importlib.util.find_spec("triton") is None:
        reason = "Triton is not installed"
    return reason or (None if has_bf16(device) else "the GPU has no bf16")


def graphed_settings_reason(config: RunConfig, model: MILModel, task: Task) -> str | None:
    """Why a training with these settings needs the plain executor, or None if a recorded step computes the same."""
    if any(stage.model.padding_from is None for stage in model.stages()):
        return f"the bags of {config.method} with these settings cannot be padded"
    if not isinstance(task, Classification):
        return "it supports only classification"
    return _first_unfit(_graphed_demands(config, model)) or _undeclared(config, GRAPHED)


def fused_settings_reason(config: RunConfig, model: MILModel, task: Task) -> str | None:
    """Why a training with these settings needs another executor, or None where the fused one computes the same."""
    if not isinstance(model, ASMIL):
        return f"it supports asmil, not {config.method}"
    if not isinstance(task, Classification) or task.single_output:
        return "it supports only classification"
    return _first_unfit(_fused_demands(config, model)) or _undeclared(config, FUSED)


def _first_unfit(demands: dict[str, bool]) -> str | None:
    unfit = [name for name, fits in demands.items() if not fits]
    return f"it does not support {unfit[0]}" if unfit else None


def _undeclared(config: RunConfig, honored: Sequence[str]) -> str | None:
    name = undeclared(config, honored)
    if name is None:
        return None
    return f"it does not support {name} = {flat(config.model_dump(mode='json'))[name]}"


def _common_demands(config: RunConfig) -> dict[str, bool]:
    """What both take for granted beside their declared settings, by the name of the setting."""
    others = [getattr(config.stabilizers, name).weight for name in type(config.stabilizers).model_fields]
    return {
        "other stabilizers": not any(others),
        f"record.every = {config.record.every}": config.record.attention == "none" or config.record.every == "epoch",
    }


def _graphed_demands(config: RunConfig, model: MILModel) -> dict[str, bool]:
    """The assumptions of a recorded step, by setting."""
    training = config.training
    routed = model.label_routes_gradients and training.batch > 1
    return {
        "a method whose steps differ from each other": all(stage.model.steps_alike for stage in model.stages()),
        f"training.batch = {training.batch} with {config.method}": not routed,
        f"training.optimizer = {training.optimizer}": training.optimizer in ("adam", "adamw"),
        # the entmax package copies a number from the CPU in every call, which CUDA graphs do not allow
        "the normalizer entmax": "entmax" not in (config.anchor.normalizer, config.attention.normalizer),
        **_common_demands(config),
    }


def _fused_demands(config: RunConfig, model: ASMIL) -> dict[str, bool]:
    """The assumptions of the kernels, by setting."""
    training, anchor, settings = config.training, config.anchor, model.config
    rows, inner = settings.tokens * settings.heads, model.tokens.shape[1]
    softmax = type(model.normalizer) is Softmax and model.normalizer.temperature == 1.0
    nsf = anchor.normalizer == "nsf" and anchor.temperature == 1.0
    is_power = 16 <= rows <= MOST_ROWS and not rows & rows - 1
    return {
        f"model.projections = {settings.projections}": settings.projections == "per_token",
        "an embedding that is not one ReLU layer": model.embedding.weight_of_single_layer() is not None,
        f"{rows} rows of scores (a power of two from 16 to {MOST_ROWS})": is_power,
        f"{model.in_features} features and inner width {inner} (multiples of {STEP_OF_WIDTHS})": not (
            model.in_features % STEP_OF_WIDTHS or inner % STEP_OF_WIDTHS
        ),
        f"attention.normalizer = {config.attention.normalizer}": softmax,
        f"anchor.normalizer = {anchor.normalizer} at temperature {anchor.temperature}": nsf
        or anchor.normalizer == "none",
        f"anchor.update = {anchor.update}": anchor.update != "epoch",
        f"training.optimizer = {training.optimizer}": training.optimizer == "adam",
        f"training.precision = {training.precision}": training.precision != "fp32",
        **_common_demands(config),
    }
