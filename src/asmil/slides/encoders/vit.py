"""The vision transformer of all pathology encoders, with timm's parameter names.

x = [class, registers, patches W_p + b_p]                          n x t x width
x = x + positions                                                  (of the patches only, if positions == "patches")
x = norm_pre(x)                                                    CLIP only
x = x + gamma_1 attn(norm1(x));  x = x + gamma_2 mlp(norm2(x))     depth times
x = norm(x)
features = x[class], or [x[class], mean of x[patches]], or head(x[class]),
           or [x[class], mean of x[class] over the four quarters of the image at twice its side]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

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
        return self.fc2(self.norm(self.act(self.fc1(tokens))))


class SwiGlu(nn.Module):
    """fc2(silu(g) v), where g is the first half of fc1 x and v the second; `hidden` counts both halves."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden // 2, width)

    def forward(self, tokens: Tensor) -> Tensor:
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
        return torch.addcmul(tokens, branch, self.gamma)


class Sum(nn.Module):
    """x + y, without `LayerScale`."""

    def forward(self, tokens: Tensor, branch: Tensor) -> Tensor:
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
        return self._mlp(self.ls1(tokens, self.attn(self.norm1(tokens))))

    def first(self, tokens: Tensor) -> Tensor:
        """The first token only, n x 1 x width: for the last block, if the other tokens are not used."""
        return self._mlp(self.ls1(tokens[:, :1], self.attn.first(self.norm1(tokens))))

    def _mlp(self, tokens: Tensor) -> Tensor:
        return self.ls2(tokens, self.mlp(self.norm2(tokens)))


def _inner_norm(width: int, eps: float | None) -> nn.Module:
    return nn.Identity() if eps is None else nn.LayerNorm(width, eps=eps)


@dataclass(frozen=True)
class VitShape:
    """The shape of a vision transformer.

    image_px: image side of the position embeddings; they are interpolated for other sides
    hidden: width of the MLP's hidden layer; of both halves together, if swiglu
    registers: number of tokens besides the class token that belong to no patch
    positions: which tokens have a position embedding; "patches" leaves out the class token and the registers
    pre_norm: a LayerNorm before the blocks, and patches without a bias (CLIP)
    inner_norm: a LayerNorm before the last product of attention and MLP (BEiT-3)
    readout: the kind of features; "class_and_mean" and "two_scales" are twice as wide as the network
    projection: width of a final linear projection (CLIP); None: no projection
    """

    patch_px: int
    width: int
    depth: int
    heads: int
    hidden: int
    image_px: int = 224
    layer_scale: bool = False
    swiglu: bool = False
    registers: int = 0
    positions: Literal["all", "patches"] = "all"
    norm_eps: float = 1e-6
    activation: Activation = "gelu"
    pre_norm: bool = False
    inner_norm: bool = False
    readout: Literal["class", "class_and_mean", "two_scales"] = "class"
    projection: int | None = None

    @property
    def features(self) -> int:
        if self.projection is not None:
            return self.projection
        return self.width if self.readout == "class" else 2 * self.width


class VisionTransformer(nn.Module):
    """Maps images, n x 3 x h x w, to features, n x shape.features; h and w must be multiples of the patch size."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        self.shape = shape
        self.prefix = 1 + shape.registers
        patches = (shape.image_px // shape.patch_px) ** 2
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.reg_token = nn.Parameter(torch.zeros(1, shape.registers, shape.width)) if shape.registers else None
        positions = patches + (self.prefix if shape.positions == "all" else 0)
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, shape.width))
        self.patch_embed = PatchEmbedding(shape.patch_px, shape.width, bias=not shape.pre_norm)
        self.norm_pre = nn.LayerNorm(shape.width, eps=shape.norm_eps) if shape.pre_norm else nn.Identity()
        self.blocks = nn.Sequential(*(self._block() for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_eps)
        self.head = nn.Identity() if shape.projection is None else nn.Linear(shape.width, shape.projection, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.shape.readout == "class":
            return self._class_features(self._embedded(images))
        if self.shape.readout == "two_scales":
            quarters = self._class_features(self._embedded(quarters_at_twice_the_side(images)))
            whole = self._class_features(self._embedded(images))
            return torch.cat([whole, quarters.unflatten(0, (len(images), 4)).mean(dim=1)], dim=1)
        tokens = self.tokens(images)
        return torch.cat([tokens[:, 0], tokens[:, self.prefix :].mean(dim=1)], dim=1)

    def tokens(self, images: Tensor) -> Tensor:
        """All tokens after the last norm, n x t x width: class, registers, patches."""
        return self.norm(self.blocks(self._embedded(images)))

    def _class_features(self, tokens: Tensor) -> Tensor:
        *before, last = cast("list[Block]", list(self.blocks))
        for block in before:
            tokens = block(tokens)
        return self.head(self.norm(last.first(tokens)[:, 0]))

    def _embedded(self, images: Tensor) -> Tensor:
        patches = self.patch_embed(images)
        n, rows, columns, _ = patches.shape
        patches = patches.flatten(1, 2)
        first = self.prefix if self.shape.positions == "all" else 0
        positions = interpolated_positions(self.pos_embed, first, rows, columns)
        if self.shape.positions == "patches":
            patches = patches + positions
        firsts = [self.cls_token] if self.reg_token is None else [self.cls_token, self.reg_token]
        tokens = torch.cat([*(token.expand(n, -1, -1).to(patches.dtype) for token in firsts), patches], dim=1)
        if self.shape.positions == "all":
            tokens = tokens + positions
        return self.norm_pre(tokens)

    def _block(self) -> Block:
        shape = self.shape
        inner = shape.norm_eps if shape.inner_norm else None
        mlp = (
            SwiGlu(shape.width, shape.hidden)
            if shape.swiglu
            else Mlp(shape.width, shape.hidden, shape.activation, inner)
        )
        attention = Attention(shape.width, shape.heads, inner)
        return Block(shape.width, mlp, attention, shape.layer_scale, shape.norm_eps)


def quarters_at_twice_the_side(images: Tensor) -> Tensor:
    """The four quarters, 4n x 3 x h x w, of images, n x 3 x h x w, enlarged to twice their side (bicubic)."""
    n, channels, rows_px, columns_px = images.shape
    large = functional.interpolate(images.float(), (2 * rows_px, 2 * columns_px), mode="bicubic").to(images.dtype)
    quarters = large.view(n, channels, 2, rows_px, 2, columns_px).permute(0, 2, 4, 1, 3, 5)
    return quarters.reshape(4 * n, channels, rows_px, columns_px)


def interpolated_positions(embedding: Tensor, first: int, rows: int, columns: int) -> Tensor:
    """Position embeddings, 1 x t x width, for a grid of patches, from those of a square grid.

    The `first` embeddings belong to no patch and are unchanged. The others are interpolated (bicubic, antialiased, in
    float32) unless the grid is the same.
    """
    side = math.isqrt(embedding.shape[1] - first)
    if rows == columns == side:
        return embedding
    square = embedding[:, first:].float().unflatten(1, (side, side)).permute(0, 3, 1, 2)
    grid = functional.interpolate(square, (rows, columns), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([embedding[:, :first], grid.permute(0, 2, 3, 1).flatten(1, 2).to(embedding.dtype)], dim=1)


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
