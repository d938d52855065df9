"""A slowly moving copy of a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def move_towards(slow: nn.Module, fast: nn.Module, momentum: float) -> None:
    """`slow <- momentum slow + (1 - momentum) fast`, for the parameters (not the buffers) of two equal modules."""
    slow_parameters: list[Tensor] = list(slow.parameters())
    fast_parameters = [parameter.detach() for parameter in fast.parameters()]
    torch._foreach_lerp_(slow_parameters, fast_parameters, 1.0 - momentum)
