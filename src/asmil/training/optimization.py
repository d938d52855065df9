"""Optimizers, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math

import torch

from asmil.models.base import MILModel
from asmil.training.config import TrainingConfig


def build_optimizer(model: MILModel, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam (decay added to the gradient) or AdamW (decay of the weights) over the model's parameter groups."""
    groups = [{"lr": config.lr, "weight_decay": config.weight_decay, **group} for group in model.parameter_groups()]
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    optimizer = kind(groups, lr=config.lr, fused=True)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def lr_factor(step: int, steps: int, warmup_steps: int, schedule: str) -> float:
    """The share of the base learning rate at a step (0-based) of `steps`.

    warm-up: (step + 1) / (warmup_steps + 1); then cosine: (1 + cos(pi progress)) / 2, or constant: 1.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return (1 + math.cos(math.pi * min(1.0, progress))) / 2


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Scale every group's base learning rate; returns that of the first group."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])
