"""Fuse convolution, batch normalization and activation into one pass over memory, with the same result."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["none", "relu", "relu6"]

# oneDNN applies the activation while writing the convolution's output: its name in oneDNN, and its parameters
_ONEDNN_ACTIVATIONS: dict[Activation, tuple[str, list[float]]] = {
    "none": ("none", []),
    "relu": ("relu", []),
    "relu6": ("hardtanh", [0.0, 6.0]),
}


def _onednn_convolution() -> Any | None:
    # this is what torch's compiler emits for CPUs; it is not public, so it may be missing
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(getattr(torch.ops.mkldnn, "_convolution_pointwise", None), "default", None)


_ONEDNN_CONVOLUTION = _onednn_convolution()


def convolved(
    x: Tensor, conv: nn.Conv2d, norm: nn.Module, activation: Activation = "none", padding: int | None = None
) -> Tensor:
    """activation(norm(conv(x))), in one pass if the normalization is folded and the device is a CPU.

    padding: used instead of the convolution's own padding
    """
    around = conv.padding if padding is None else (padding, padding)
    if isinstance(norm, nn.Identity) and x.device.type == "cpu" and _ONEDNN_CONVOLUTION is not None:
        name, parameters = _ONEDNN_ACTIVATIONS[activation]
        sizes = [list(around), list(conv.stride), list(conv.dilation), conv.groups]
        return _ONEDNN_CONVOLUTION(x, conv.weight, conv.bias, *sizes, name, parameters, "")
    x = norm(functional.conv2d(x, conv.weight, conv.bias, conv.stride, around, conv.dilation, conv.groups))
    if activation == "none":
        return x
    return functional.relu(x, inplace=True) if activation == "relu" else functional.relu6(x, inplace=True)


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[nn.Parameter, nn.Parameter]:
    """Weight and bias of the convolution equal to norm(conv): both scaled by gamma / sqrt(var + eps)."""
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a normalization without running statistics cannot be folded")
    scale = (norm.running_var.double() + norm.eps).rsqrt() * norm.weight.double()
    bias = torch.zeros_like(scale) if conv.bias is None else conv.bias.double()
    bias = (bias - norm.running_mean.double()) * scale + norm.bias.double()
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    return nn.Parameter(weight.to(conv.weight.dtype), False), nn.Parameter(bias.to(conv.weight.dtype), False)


def fold_batch_norms(network: nn.Module) -> nn.Module:
    """Fold, in place, every batch normalization that is registered right after a convolution of the same module.

    All networks of this package follow this order: only the normalization uses the output of the convolution.
    """
    for module in network.modules():
        children = list(module.named_children())
        for (_, conv), (name, norm) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                conv.weight, conv.bias = folded(conv, norm)
                setattr(module, name, nn.Identity())
    return network
