"""Image towers of vision-language models: CONCH, PLIP and PathGen-CLIP-L."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from asmil.slides.encoders.base import State
from asmil.slides.encoders.pathology import NON_COMMERCIAL, VIT_B16
from asmil.slides.encoders.registry import register, register_vit
from asmil.slides.encoders.vit import VisionTransformer, VitShape
from asmil.slides.encoders.vit_names import from_clip


class AttentionalPooler(nn.Module):
    """Attention of one learned query over all tokens: n x t x tokens_width to n x width."""

    def __init__(self, width: int, tokens_width: int, heads: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, width))
        self.attn = nn.MultiheadAttention(width, heads, kdim=tokens_width, vdim=tokens_width, batch_first=True)
        self.ln_q = nn.LayerNorm(width)
        self.ln_k = nn.LayerNorm(tokens_width)

    def forward(self, tokens: Tensor) -> Tensor:
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
        return self.ln_contrast(self.attn_pool_contrast(self.trunk.tokens(images)))


CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

CONCH_TRUNK = replace(VIT_B16, image_px=448)
CLIP_B32 = replace(VIT_B16, patch_px=32, norm_eps=1e-5, activation="quick_gelu", pre_norm=True, projection=512)
CLIP_L14 = replace(
    CLIP_B32, patch_px=14, width=1024, depth=24, heads=16, hidden=4096, image_px=336, activation="gelu", projection=768
)


def from_conch(published: Mapping[str, Tensor]) -> State:
    """CONCH's image tower up to the contrastive projection; the text tower and the captions' pooler are left out."""
    kept = ("visual.trunk.", "visual.attn_pool_contrast.", "visual.ln_contrast.")
    return {name.removeprefix("visual."): tensor for name, tensor in published.items() if name.startswith(kept)}


register(
    "conch",
    "ViT-B/16 by CoCa, features before the projection (Lu et al., 2024)",
    width=512,
    tile_px=512,
    licence=NON_COMMERCIAL,
    build=partial(AttentionPooledTransformer, CONCH_TRUNK, 512),
    input_px=CONCH_TRUNK.image_px,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    hub="MahmoodLab/CONCH",
    hub_file="pytorch_model.bin",
    gated=True,
    convert=from_conch,
)
register_vit(
    "plip",
    "CLIP ViT-B/32, projected and not normalized (Huang et al., 2023)",
    CLIP_B32,
    "none stated",
    "vinid/plip",
    mean=CLIP_MEAN,
    std=CLIP_STD,
    hub_file="pytorch_model.bin",
    convert=from_clip,
)
register_vit(
    "pathgen_clip_l",
    "CLIP ViT-L/14 at 336 px, projected and not normalized (Sun et al., 2024)",
    CLIP_L14,
    "CC-BY-2.0",
    "jamessyx/PathGen-CLIP-L",
    tile_px=336,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    hub_file="pathgen-clip-l.pt",
    gated=True,
    convert=from_clip,
)
