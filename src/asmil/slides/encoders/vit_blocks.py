"""The parts of a vision transformer, with the parameter names that timm gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["gelu", "quick_gelu"]


def quick_gelu(inputs: Tensor) -> Tensor:
    """The approximation x sigmoid(1.702 x) of the first CLIP networks."""
    return inputs * torch.sigmoid(1.702 * inputs)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"gelu": functional.gelu, "quick_gelu": quick_gelu}


class PatchEmbedding(nn.Module):
    """Divides images into patches and maps each to a token: n x 3 x h x w to n x rows x columns x width."""

    def __init__(self, patch_px: int, width: int, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch_px, patch_px, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        """The tokens of the patches, by row and column."""
        tokens: Tensor = self.proj(images)
        return tokens.permute(0, 2, 3, 1)


class Attention(nn.Module):
    """Self-attention, n x t x width to the same; queries, keys and values come from one product.

    inner_norm_eps: epsilon of a LayerNorm before the output projection (BEiT-3); None: no LayerNorm
    """

    def __init__(self, width: int, heads: int, inner_norm_eps: float | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = _inner_norm(width, inner_norm_eps)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The attention output of every token."""
        n, t, width = tokens.shape
        query, key, value = self.qkv(tokens).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self._mixed(query, key, value)

    def first(self, tokens: Tensor) -> Tensor:
        """The attention output of the first token only, n x 1 x width."""
        n, t, width = tokens.shape
        query = functional.linear(tokens[:, :1], self.qkv.weight[:width], self.qkv.bias[:width])
        query = query.view(n, 1, self.heads, width // self.heads).transpose(1, 2)
        others = functional.linear(tokens, self.qkv.weight[width:], self.qkv.bias[width:])
        key, value = others.view(n, t, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self._mixed(query, key, value)

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(self.norm(mixed.transpose(1, 2).flatten(2)))


class Mlp(nn.Module):
    """fc2(act(fc1 x)), or fc2(norm(act(fc1 x))) with an inner norm."""

    def __init__(self, width: int, hidden: int, activation: Activation, inner_norm_eps: float | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.norm = _inner_norm(hidden, inner_norm_eps)
        self.fc2 = nn.Linear(hidden, width)
        self.act = ACTIVATIONS[activation]

    def forward(self, tokens: Tensor) -> Tensor:
        """Applied to every token separately."""
        return self.fc2(self.norm(self.act(self.fc1(tokens))))


class SwiGlu(nn.Module):
    """fc2(silu(g) v), where g is the first half of fc1 x and v the second; `hidden` counts both halves."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden // 2, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Applied to every token separately."""
        # two products, because the halves of one are not contiguous, which makes the next step several times slower
        half = self.fc2.in_features
        gate = functional.linear(tokens, self.fc1.weight[:half], self.fc1.bias[:half])
        value = functional.linear(tokens, self.fc1.weight[half:], self.fc1.bias[half:])
        return self.fc2(functional.silu(gate) * value)


class LayerScale(nn.Module):
    """x + gamma y: a residual branch, scaled per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor, branch: Tensor) -> Tensor:
        """The sum, in one pass over the tokens."""
        return torch.addcmul(tokens, branch, self.gamma)


class Sum(nn.Module):
    """x + y, without `LayerScale`."""

    def forward(self, tokens: Tensor, branch: Tensor) -> Tensor:
        """The sum."""
        return tokens + branch


class Block(nn.Module):
    """x + attn(norm1 x), then x + mlp(norm2 x)."""

    def __init__(self, width: int, mlp: Mlp | SwiGlu, attention: Attention, layer_scale: bool, norm_eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attn = attention
        self.ls1 = LayerScale(width) if layer_scale else Sum()
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = mlp
        self.ls2 = LayerScale(width) if layer_scale else Sum()

    def forward(self, tokens: Tensor) -> Tensor:
        """The tokens after attention and the MLP."""
        return self._mlp(self.ls1(tokens, self.attn(self.norm1(tokens))))

    def first(self, tokens: Tensor) -> Tensor:
        """The first token only, n x 1 x width: for the last block, if the other tokens are not used."""
        return self._mlp(self.ls1(tokens[:, :1], self.attn.first(self.norm1(tokens))))

    def _mlp(self, tokens: Tensor) -> Tensor:
        return self.ls2(tokens, self.mlp(self.norm2(tokens)))


def _inner_norm(width: int, eps: float | None) -> nn.Module:
    return nn.Identity() if eps is None else nn.LayerNorm(width, eps=eps)


def fold_layer_scales(network: nn.Module) -> nn.Module:
    """The same function without `LayerScale`: each scale is folded into the linear layer whose output it scales."""
    for block in network.modules():
        if isinstance(block, Block):
            block.ls1 = _folded(block.ls1, block.attn.proj)
            block.ls2 = _folded(block.ls2, block.mlp.fc2)
    return network


def _folded(scale: LayerScale | Sum, product: nn.Linear) -> Sum:
    if isinstance(scale, LayerScale):
        product.weight = nn.Parameter(scale.gamma[:, None] * product.weight, requires_grad=False)
        product.bias = nn.Parameter(scale.gamma * product.bias, requires_grad=False)
    return Sum()
