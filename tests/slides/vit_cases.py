"""The compared architectures, small, with the weights and answers that `vit_numbers/make.py` froze."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asmil.slides.encoders import clip, pathology, recent
from asmil.slides.encoders.clip import AttentionPooledTransformer
from asmil.slides.encoders.recent import ProjectedTransformer
from asmil.slides.encoders.registry import find_encoder
from asmil.slides.encoders.swin import SwinShape, SwinTransformer
from asmil.slides.encoders.vit import VisionTransformer, VitShape
from vit_weights import draw_state

NUMBERS = Path(__file__).parent / "vit_numbers"


def small(shape: VitShape, hidden: int = 192, image_px: int = 64, **changes: Any) -> VisionTransformer:
    """A registered architecture, with all that makes it special, but narrow and of two blocks."""
    return VisionTransformer(replace(shape, width=48, depth=2, heads=3, hidden=hidden, image_px=image_px, **changes))


CASES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "lunit": ("lunit_vits16", lambda: small(pathology.VIT_S16)),
    "uni": ("uni", lambda: small(pathology.VIT_L16)),
    "uni2_h": ("uni2_h", lambda: small(pathology.UNI2_H, 256, 56)),
    "virchow": ("virchow", lambda: small(pathology.VIRCHOW, 256, 56)),
    "virchow2": ("virchow2", lambda: small(pathology.VIRCHOW2, 256, 56)),
    "h_optimus": ("h_optimus_1", lambda: small(pathology.H_OPTIMUS, 256, 56)),
    "gigapath": ("gigapath", lambda: small(pathology.GIGAPATH, 256)),
    "phikon": ("phikon", lambda: small(pathology.PHIKON)),
    "phikon_v2": ("phikon_v2", lambda: small(pathology.VIT_L16)),
    "plip": ("plip", lambda: small(clip.CLIP_B32, patch_px=16, projection=24)),
    "pathgen": ("pathgen_clip_l", lambda: small(clip.CLIP_L14, patch_px=16, projection=24)),
    "conch": ("conch", lambda: AttentionPooledTransformer(small(clip.CONCH_TRUNK).shape, 32)),
    "hibou": ("hibou_l", lambda: small(recent.HIBOU_L, 256, 56)),
    "musk": ("musk", lambda: small(recent.MUSK)),
    "musk_two_scales": ("musk_two_scales", lambda: small(recent.MUSK, readout="two_scales")),
    "keep": ("keep", lambda: ProjectedTransformer(small(pathology.VIT_L16).shape, 32)),
    "ctranspath": ("ctranspath", lambda: SwinTransformer(SwinShape(16, (2, 2), (2, 4), image_px=56))),
}


def frozen(case: str) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((NUMBERS / f"{case}.json").read_text())
    return numbers


def published(case: str) -> dict[str, Tensor]:
    """The drawn weights under the names that the other library publishes."""
    return {name: torch.from_numpy(values) for name, values in draw_state(frozen(case)["shapes"]).items()}


def loaded(case: str) -> nn.Module:
    encoder, build = CASES[case]
    convert = find_encoder(encoder).convert
    network = build()
    network.load_state_dict(convert(published(case)) if convert else published(case))
    return network.eval()
