"""How weights begin, where a method does not take the framework's way."""

from __future__ import annotations

from torch import nn


def start_xavier(module: nn.Module) -> None:
    """Xavier-normal weights and zero biases for every linear layer inside `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
