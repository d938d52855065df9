"""Encoders published since UNI: Kaiko's, Midnight-12k, GPFM, H0-mini, Hibou-L, MUSK, KEEP and CONCH v1.5.

Shapes, transforms and names follow their public code. Some weights were not available for testing; docs/encoders.md
lists which encoders this applies to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil.slides.encoders.base import State
from asmil.slides.encoders.clip import AttentionPooledTransformer
from asmil.slides.encoders.pathology import (
    H_OPTIMUS_MEAN,
    H_OPTIMUS_STD,
    NON_COMMERCIAL,
    VIT_B16,
    VIT_G14,
    VIT_L16,
    VIT_S16,
)
from asmil.slides.encoders.registry import register, register_vit
from asmil.slides.encoders.vit import VisionTransformer, VitShape, interpolated_positions
from asmil.slides.encoders.vit_names import from_beit3, from_hugging_face_registers, from_hugging_face_vit

HALF = (0.5, 0.5, 0.5)
VIT_L14 = replace(VIT_L16, patch_px=14)
KAIKO_L14 = replace(VIT_L14, image_px=518, registers=4, positions="patches")
MIDNIGHT = replace(VIT_G14, readout="class_and_mean")
H0_MINI = replace(VIT_B16, patch_px=14, hidden=4096, layer_scale=True, swiglu=True, registers=4, positions="patches")
HIBOU_L = replace(VIT_L14, hidden=5472, swiglu=True, registers=4, positions="patches")
HIBOU_MEAN, HIBOU_STD = (0.7068, 0.5755, 0.7220), (0.1950, 0.2316, 0.1816)
MUSK = replace(VIT_L16, image_px=384, layer_scale=False, inner_norm=True, norm_eps=1e-5)
CONCH_V15_WIDTH = 768
KEEP_WIDTH = 768
_HALF: dict[str, Any] = {"mean": HALF, "std": HALF}
_KAIKO: dict[str, Any] = {"tile_px": 256, "input_px": 224, "interpolation": "bilinear", **_HALF}
"""The largest was trained on images larger than the tiles."""

for _name, _kind, _shape, _hub in (
    ("kaiko_vits16", "ViT-S/16 by DINO", VIT_S16, "vit_small_patch16_224"),
    ("kaiko_vits8", "ViT-S/8 by DINO", replace(VIT_S16, patch_px=8), "vit_small_patch8_224"),
    ("kaiko_vitb16", "ViT-B/16 by DINO", VIT_B16, "vit_base_patch16_224"),
    ("kaiko_vitb8", "ViT-B/8 by DINO", replace(VIT_B16, patch_px=8), "vit_base_patch8_224"),
    ("kaiko_vitl14", "ViT-L/14 by DINOv2", KAIKO_L14, "vit_large_patch14_reg4_dinov2"),
):
    _hub = f"1aurent/{_hub}.kaiko_ai_towards_large_pathology_fms"
    register_vit(_name, f"{_kind} on TCGA (Kaiko, 2024)", _shape, "Kaiko, non-commercial", _hub, **_KAIKO)
_MIDNIGHT: dict[str, Any] = {"interpolation": "bilinear", "convert": from_hugging_face_vit, **_HALF}
_H0_MINI: dict[str, Any] = {"mean": H_OPTIMUS_MEAN, "std": H_OPTIMUS_STD, "gated": True}
_HIBOU: dict[str, Any] = {"mean": HIBOU_MEAN, "std": HIBOU_STD, "gated": True, "convert": from_hugging_face_registers}
_MIDNIGHT_SUMMARY = (
    "ViT-g/14 by DINOv2 on 12 thousand slides; class token and mean of the patches (Karasikov et al., 2025)"
)
_GPFM_SUMMARY = "ViT-L/14, distilled from several encoders (Ma et al., 2024)"
_H0_MINI_SUMMARY = "ViT-B/14, distilled from H-optimus-0; class token (Filiot et al., 2025)"
_HIBOU_SUMMARY = "ViT-L/14 by DINOv2 on 1.2 billion tiles; class token (Nechaev et al., 2024)"

for _name, _summary, _shape, _licence, _hub, _others in (
    ("midnight_12k", _MIDNIGHT_SUMMARY, MIDNIGHT, "MIT", "kaiko-ai/midnight", _MIDNIGHT),
    ("gpfm", _GPFM_SUMMARY, VIT_L14, NON_COMMERCIAL, "majiabo/GPFM", {"hub_file": "GPFM.pth"}),
    ("h0_mini", _H0_MINI_SUMMARY, H0_MINI, NON_COMMERCIAL, "bioptimus/H0-mini", _H0_MINI),
    ("hibou_l", _HIBOU_SUMMARY, HIBOU_L, "Apache-2.0", "histai/hibou-L", _HIBOU),
):
    register_vit(_name, _summary, _shape, _licence, _hub, **_others)
for _name, _summary, _shape in (
    ("musk", "BEiT-3 ViT-L/16 at 384 px, image expert; class token (Xiang et al., 2025)", MUSK),
    (
        "musk_two_scales",
        "MUSK with its quarters at twice the size, as its authors advise for slides (Xiang et al., 2025)",
        replace(MUSK, readout="two_scales"),
    ),
):
    register_vit(
        _name, _summary, _shape, NON_COMMERCIAL, "xiangjx/musk", tile_px=384, gated=True, convert=from_beit3, **_HALF
    )


def from_conch_v15(published: Mapping[str, Tensor]) -> State:
    """CONCH v1.5: its pooler has no biases in some products, and its position embeddings may have another grid."""
    state = dict(published)
    pool = "attn_pool_contrast."
    keys, values = state.pop(f"{pool}to_kv.weight").chunk(2)
    query, out = state.pop(f"{pool}to_q.weight"), state.pop(f"{pool}to_out.weight")
    state |= {
        f"{pool}attn.q_proj_weight": query,
        f"{pool}attn.k_proj_weight": keys.contiguous(),
        f"{pool}attn.v_proj_weight": values.contiguous(),
        f"{pool}attn.in_proj_bias": torch.zeros(3 * len(query)),
        f"{pool}attn.out_proj.weight": out,
        f"{pool}attn.out_proj.bias": torch.zeros(len(out)),
    }
    side = VIT_L16.image_px // VIT_L16.patch_px
    state["trunk.pos_embed"] = interpolated_positions(state["trunk.pos_embed"], 1, side, side)
    return state


register(
    "conch_v1_5",
    "ViT-L/16 by CoCa, features before the projection; the tiles of TITAN and FEATHER (Ding et al., 2024)",
    width=CONCH_V15_WIDTH,
    tile_px=512,
    licence=NON_COMMERCIAL,
    build=partial(AttentionPooledTransformer, VIT_L16, CONCH_V15_WIDTH),
    input_px=448,
    interpolation="bilinear",
    hub="MahmoodLab/conchv1_5",
    hub_file="pytorch_model_vision.bin",
    gated=True,
    convert=from_conch_v15,
)


class ProjectedTransformer(nn.Module):
    """visual_head(visual(x)), normalized to length one: images, n x 3 x h x w, to features, n x width."""

    def __init__(self, shape: VitShape, width: int) -> None:
        super().__init__()
        self.visual = VisionTransformer(shape)
        self.visual_head = nn.Sequential(nn.Linear(shape.features, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, images: Tensor) -> Tensor:
        return functional.normalize(self.visual_head(self.visual(images)), dim=-1)


def from_keep(published: Mapping[str, Tensor]) -> State:
    """KEEP's image tower; the text tower is left out."""
    return {name: tensor for name, tensor in published.items() if name.startswith(("visual.", "visual_head."))}


register(
    "keep",
    "ViT-L/16 with captions and disease knowledge, projected and normalized (Zhou et al., 2026)",
    width=KEEP_WIDTH,
    tile_px=256,
    licence="MIT",
    build=partial(ProjectedTransformer, VIT_L16, KEEP_WIDTH),
    input_px=VIT_L16.image_px,
    hub="Astaxanthin/KEEP",
    convert=from_keep,
)
