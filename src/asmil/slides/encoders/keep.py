"""KEEP: a vision transformer with a two-layer projection, trained with captions and a disease knowledge graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from asmil.slides.encoders.base import EncoderEntry, State
from asmil.slides.encoders.pathology import MPP, VIT_L16
from asmil.slides.encoders.registry import register
from asmil.slides.encoders.vit import VisionTransformer, VitShape

KEEP_WIDTH = 768


class ProjectedTransformer(nn.Module):
    """visual_head(visual(x)), normalized to length one."""

    def __init__(self, shape: VitShape, width: int) -> None:
        super().__init__()
        self.visual = VisionTransformer(shape)
        self.visual_head = nn.Sequential(nn.Linear(shape.features, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, images: Tensor) -> Tensor:
        """Features, n x width, of images, n x 3 x h x w."""
        return functional.normalize(self.visual_head(self.visual(images)), dim=-1)


def from_keep(published: Mapping[str, Tensor]) -> State:
    """KEEP's image tower; the text tower is left out."""
    return {name: tensor for name, tensor in published.items() if name.startswith(("visual.", "visual_head."))}


register(
    EncoderEntry(
        name="keep",
        summary="ViT-L/16 with captions and disease knowledge, projected and normalized (Zhou et al., 2026)",
        width=KEEP_WIDTH,
        tile_px=256,
        mpp=MPP,
        licence="MIT",
        url="https://huggingface.co/Astaxanthin/KEEP",
        build=partial(ProjectedTransformer, VIT_L16, KEEP_WIDTH),
        input_px=VIT_L16.image_px,
        hub="Astaxanthin/KEEP",
        convert=from_keep,
    )
)
