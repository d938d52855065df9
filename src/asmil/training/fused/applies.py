"""Which settings, tasks and machines the fused executor supports; does not import Triton."""

from __future__ import annotations

import importlib.util

import torch

from asmil.attention.normalizers import Softmax
from asmil.bf16 import has_bf16
from asmil.models.asmil import ASMIL
from asmil.models.base import MILModel
from asmil.tasks.base import Task
from asmil.tasks.classification import Classification
from asmil.training.config import RunConfig

MOST_ROWS = 128
STEP_OF_WIDTHS = 16


def machine_reason(device: torch.device) -> str | None:
    """Why this machine cannot use fused kernels, or None if it can."""
    if device.type != "cuda":
        return f"the device is {device.type}, not a CUDA GPU"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not has_bf16(device):
        return "the GPU does not support bf16"
    return None


def settings_reason(config: RunConfig, model: MILModel, task: Task) -> str | None:
    """Why a training with these settings needs the plain executor, or None if the fused one computes the same."""
    if not isinstance(model, ASMIL):
        return f"it supports asmil, not {config.method}"
    if not isinstance(task, Classification) or task.single_output:
        return "it supports only classification"
    unfit = [name for name, fits in _demands(config, model).items() if not fits]
    return f"it does not support {unfit[0]}" if unfit else None


def _demands(config: RunConfig, model: ASMIL) -> dict[str, bool]:
    """The assumptions of the kernels, by setting."""
    training, anchor, stabilizers, settings = config.training, config.anchor, config.stabilizers, model.config
    rows, inner = settings.tokens * settings.heads, model.tokens.shape[1]
    others = [getattr(stabilizers, name).weight for name in type(stabilizers).model_fields]
    softmax = type(model.normalizer) is Softmax and model.normalizer.temperature == 1.0
    nsf = anchor.normalizer == "nsf" and anchor.temperature == 1.0
    is_power = 16 <= rows <= MOST_ROWS and not rows & rows - 1
    return {
        f"model.projections = {settings.projections}": settings.projections == "per_token",
        "an embedding that is not one ReLU layer": model.embedding.weight_of_single_layer() is not None,
        "model.drop_count": settings.drop_count is None,
        "model.token_heads": not settings.token_heads,
        f"{rows} rows of scores (a power of two from 16 to {MOST_ROWS})": is_power,
        f"{model.in_features} features and inner width {inner} (multiples of {STEP_OF_WIDTHS})": not (
            model.in_features % STEP_OF_WIDTHS or inner % STEP_OF_WIDTHS
        ),
        f"attention.normalizer = {config.attention.normalizer}": softmax,
        f"anchor.normalizer = {anchor.normalizer} at temperature {anchor.temperature}": nsf
        or anchor.normalizer == "none",
        f"anchor.divergence = {anchor.divergence}": anchor.divergence == "kl",
        f"anchor.reduction = {anchor.reduction}": anchor.reduction == "sum",
        f"anchor.rows = {anchor.rows}": anchor.rows == "all",
        f"anchor.update = {anchor.update}": anchor.update != "epoch",
        "anchor.both_sides": not anchor.both_sides,
        "anchor.ramp_epochs": anchor.ramp_epochs == 0,
        "anchor.gradient_share": anchor.gradient_share is None,
        "other stabilizers": not any(others),
        f"training.optimizer = {training.optimizer}": training.optimizer == "adam",
        f"training.decay = {training.decay}": training.decay == "all",
        f"training.batch = {training.batch}": training.batch == 1,
        f"training.accumulate = {training.accumulate}": training.accumulate == 1,
        "training.clip_norm": training.clip_norm is None,
        f"training.precision = {training.precision}": training.precision != "fp32",
        "data.max_tiles": config.data.max_tiles is None,
        f"record.every = {config.record.every}": config.record.attention == "none" or config.record.every == "epoch",
    }
