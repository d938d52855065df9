"""CTransPath: a Swin transformer with a convolutional stem, with timm's parameter names.

x = norm(conv(relu(bn(conv(relu(bn(conv(images))))))))               n x rows x columns x width, a pixel for 4 x 4
x = x + attn(norm1(x)) in windows;  x = x + mlp(norm2(x))            every second block with windows moved by half
x = reduction(norm([the four pixels of a square]))                   between stages: half the side, twice the width
features = mean over rows and columns of norm(x)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.slides.encoders.base import State
from asmil.slides.encoders.registry import register
from asmil.slides.encoders.vit import Mlp

APART = -100.0
"""Added to the attention scores between tokens that are in one window only because of the shift."""


@dataclass(frozen=True)
class SwinShape:
    """The shape of a Swin transformer: width of the first stage (doubled in each stage), blocks and heads per stage.

    window: side of the windows in tokens; it divides the side of every stage
    """

    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    image_px: int = 224

    @property
    def features(self) -> int:
        return self.width << (len(self.depths) - 1)


class ConvStem(nn.Module):
    """Three convolutions instead of one: n x 3 x h x w to n x h/4 x w/4 x width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = (3, width // 8, width // 4)
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.proj = nn.Sequential(*layers, nn.Conv2d(channels[-1], width, 1))
        self.norm = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


class WindowAttention(nn.Module):
    """Self-attention inside windows, with a bias for every offset of two tokens."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, windows: Tensor, apart: Tensor | None) -> Tensor:
        """n x windows x tokens x width to the same; `apart`, windows x 1 x tokens x tokens, is added to the scores."""
        n, count, tokens, width = windows.shape
        parts = self.qkv(windows).view(n, count, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(3, 0, 1, 4, 2, 5)
        offsets = window_offsets(self.window, windows.device)
        bias = self.relative_position_bias_table[offsets].permute(2, 0, 1)[None]
        bias = bias if apart is None else bias + apart.to(bias.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.proj(mixed.transpose(2, 3).flatten(3))


class SwinBlock(nn.Module):
    """x + attn(norm1 x), then x + mlp(norm2 x), on n x rows x columns x width."""

    def __init__(self, width: int, heads: int, window: int, moved: bool) -> None:
        super().__init__()
        self.window, self.moved = window, moved
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads, window)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, 4 * width, "gelu")

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens.shape[1]
        # one window contains all tokens, so there is nothing to shift
        shift = self.window // 2 if self.moved and rows > self.window else 0
        inputs = torch.roll(self.norm1(tokens), (-shift, -shift), (1, 2))
        apart = tokens_apart(rows, self.window, shift, tokens.device) if shift else None
        mixed = joined(self.attn(cut(inputs, self.window), apart), rows, self.window)
        tokens = tokens + torch.roll(mixed, (shift, shift), (1, 2))
        return tokens + self.mlp(self.norm2(tokens))


class Merging(nn.Module):
    """Squares of 2 x 2 tokens become one token of twice the width: n x rows/2 x columns/2 x 2 width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        squares = [tokens[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(torch.cat(squares, dim=-1)))


class Stage(nn.Module):
    """Blocks of one width, and the merging of their tokens unless it is the last stage."""

    def __init__(self, width: int, depth: int, heads: int, window: int, last: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(SwinBlock(width, heads, window, bool(index % 2)) for index in range(depth)))
        self.downsample = nn.Identity() if last else Merging(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.downsample(self.blocks(tokens))


class SwinTransformer(nn.Module):
    """Maps square images, n x 3 x p x p, to features, n x shape.features."""

    def __init__(self, shape: SwinShape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = ConvStem(shape.width)
        stages = len(shape.depths)
        self.layers = nn.Sequential(
            *(
                Stage(shape.width * 2**index, depth, heads, shape.window, index == stages - 1)
                for index, (depth, heads) in enumerate(zip(shape.depths, shape.heads, strict=True))
            )
        )
        self.norm = nn.LayerNorm(shape.features)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.layers(self.patch_embed(images))).mean(dim=(1, 2))


def cut(tokens: Tensor, window: int) -> Tensor:
    """Windows, n x count x window^2 x width, of tokens, n x rows x columns x width."""
    n, rows, columns, width = tokens.shape
    cells = tokens.reshape(n, rows // window, window, columns // window, window, width)
    return cells.transpose(2, 3).reshape(n, -1, window * window, width)


def joined(windows: Tensor, rows: int, window: int) -> Tensor:
    """Tokens, n x rows x rows x width, of their windows."""
    n, _, _, width = windows.shape
    cells = windows.view(n, rows // window, rows // window, window, window, width)
    return cells.transpose(2, 3).reshape(n, rows, rows, width)


@lru_cache(maxsize=16)
def window_offsets(window: int, device: torch.device) -> Tensor:
    """Row of the bias table for every pair of tokens in a window, window^2 x window^2."""
    positions = torch.arange(window, device=device)
    rows, columns = positions.repeat_interleave(window), positions.repeat(window)
    down, right = (axis[:, None] - axis[None, :] + window - 1 for axis in (rows, columns))
    return down * (2 * window - 1) + right


@lru_cache(maxsize=16)
def tokens_apart(rows: int, window: int, shift: int, device: torch.device) -> Tensor:
    """APART for pairs of a shifted window that are not adjacent in the image, windows x 1 x window^2 x window^2."""
    positions = torch.arange(rows, device=device)
    part = (positions >= rows - window).int() + (positions >= rows - shift).int()
    region = (3 * part[:, None] + part[None, :])[None, :, :, None]
    regions = cut(region, window)[0, :, :, 0]
    return APART * (regions[:, None, :, None] != regions[:, None, None, :]).float()


def from_swin(published: Mapping[str, Tensor]) -> State:
    """The published state without derived buffers and without a head."""
    derived = ("relative_position_index", "attn_mask")
    return {
        name: tensor
        for name, tensor in published.items()
        if not name.endswith(derived) and not name.startswith("head.")
    }


CTRANSPATH = SwinShape()

register(
    "ctranspath",
    "Swin-T with a convolutional stem by contrastive learning; tiles of CHIEF (Wang et al., 2022)",
    width=CTRANSPATH.features,
    tile_px=256,
    mpp=1.0,
    licence="GPL-3.0, non-commercial",
    build=partial(SwinTransformer, CTRANSPATH),
    input_px=CTRANSPATH.image_px,
    interpolation="bilinear",
    hub="jamesdolezal/CTransPath",
    hub_file="ctranspath.pth",
    convert=from_swin,
)
