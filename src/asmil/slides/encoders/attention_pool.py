"""A vision transformer whose tokens are pooled by one learned query, as in CoCa."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asmil.slides.encoders.vit import VisionTransformer, VitShape


class AttentionalPooler(nn.Module):
    """Attention of one learned query over all tokens: n x t x tokens_width to n x width."""

    def __init__(self, width: int, tokens_width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, width))
        self.attn = nn.MultiheadAttention(width, heads, kdim=tokens_width, vdim=tokens_width, batch_first=True)
        self.ln_q = nn.LayerNorm(width)
        self.ln_k = nn.LayerNorm(tokens_width)

    def forward(self, tokens: Tensor) -> Tensor:
        """What the query finds in the tokens of every image."""
        tokens = self.ln_k(tokens)
        query = self.ln_q(self.query).expand(len(tokens), 1, -1).to(tokens.dtype)
        pooled: Tensor = self.attn(query, tokens, tokens, need_weights=False)[0]
        return pooled[:, 0]


class AttentionPooledTransformer(nn.Module):
    """ln_contrast(attn_pool_contrast(trunk(x))): the image features before CoCa's contrastive projection."""

    def __init__(self, shape: VitShape, width: int, heads: int = 8) -> None:
        super().__init__()
        self.trunk = VisionTransformer(shape)
        self.attn_pool_contrast = AttentionalPooler(width, shape.width, heads)
        self.ln_contrast = nn.LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        """Features, n x width, of images, n x 3 x h x w."""
        features: Tensor = self.ln_contrast(self.attn_pool_contrast(self.trunk.tokens(images)))
        return features
