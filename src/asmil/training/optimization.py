"""Optimizers, gradient clipping, and the learning rate as a pure function of the step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from asmil.models.base import MILModel
from asmil.runs.config import TrainingConfig

LOOKAHEAD_STEPS = 6
LOOKAHEAD_SHARE = 0.5


def build_optimizer(model: MILModel, config: TrainingConfig) -> torch.optim.Optimizer:
    """The optimizer of the settings, over the model's parameter groups.

    adam and sgd add the decay to the gradient, adamw and lookahead_radam decay the weights themselves.
    """
    groups: list[dict[str, Any]] = []
    for group in model.parameter_groups():
        groups += _by_decay({"lr": config.lr, "weight_decay": config.weight_decay, **group}, config.decay)
    optimizer: torch.optim.Optimizer
    if config.optimizer == "lookahead_radam":
        kind = _without_compiler(LookaheadRAdam)
        optimizer = kind(groups, lr=config.lr, betas=config.betas, decoupled_weight_decay=True)
    elif config.optimizer == "sgd":
        kind = _without_compiler(torch.optim.SGD)
        optimizer = kind(groups, lr=config.lr, momentum=config.betas[0])
    else:
        kind = _without_compiler(torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW)
        optimizer = kind(groups, lr=config.lr, betas=config.betas, fused=True)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


@cache
def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """The optimizer, with methods that do not import torch's compiler: this takes seconds, and it is not used.

    torch wraps these methods so that they are left out of a compilation, and every wrapper imports the compiler.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def _by_decay(group: dict[str, Any], decay: str) -> list[dict[str, Any]]:
    """The unchanged group, or two groups: matrices, and vectors (biases, gains) without decay."""
    if decay == "all":
        return [group]
    vectors = [parameter for parameter in group["params"] if parameter.ndim < 2]
    matrices = [parameter for parameter in group["params"] if parameter.ndim >= 2]
    parts = [{**group, "params": matrices}, {**group, "params": vectors, "weight_decay": 0.0}]
    return [part for part in parts if part["params"]]


class LookaheadRAdam(torch.optim.RAdam):
    """RAdam with lookahead: every sixth step the weights are averaged with slow copies of themselves.

    As in TransMIL's code, the slow copies are created at the first of these steps, which therefore changes nothing.
    """

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of RAdam, and every sixth step the lookahead update."""
        with torch.no_grad():
            result: float | None = inspect.unwrap(torch.optim.RAdam.step)(self, closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self._look_ahead(parameter)
        return result

    def _look_ahead(self, parameter: nn.Parameter) -> None:
        state = self.state.get(parameter)
        if not state or int(state["step"]) % LOOKAHEAD_STEPS:
            return
        if "slow" not in state:
            state["slow"] = parameter.detach().clone()
        else:
            parameter.copy_(state["slow"].lerp_(parameter, LOOKAHEAD_SHARE))


def clip_gradients(optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
    """Clip the norm of the gradient: each group with its own `clip_norm` separately, all others together."""
    shared: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        own = group.get("clip_norm")
        if own is not None:
            nn.utils.clip_grad_norm_(group["params"], own)
        else:
            shared += group["params"]
    if clip_norm is not None and shared:
        nn.utils.clip_grad_norm_(shared, clip_norm)


def lr_factor(step: int, steps: int, steps_per_epoch: int, config: TrainingConfig) -> float:
    """The factor of the base learning rate at a step (0-based) of `steps`.

    Warm-up: (step + 1) / (warm-up steps + 1). Then cosine from 1 to lr_min / lr, (1 + cos(pi progress)) / 2, or
    constant 1. Every past epoch in `lr_drops` multiplies it by `lr_drop_factor`.
    """
    warmup_steps = round(steps_per_epoch * config.warmup_epochs)
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    drops = sum(step >= epoch * steps_per_epoch for epoch in config.lr_drops)
    factor = config.lr_drop_factor**drops
    if config.schedule == "constant":
        return factor
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    floor = config.lr_min / config.lr
    return factor * (floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, progress))) / 2)


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> float:
    """Scale every group's base learning rate; return the rate of the first group."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])
