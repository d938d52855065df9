"""Entries of vision transformers trained on pathology slides without labels, as published by their authors.

Every tile side is the authors' recommendation for slides at 20x (0.5 um/px). If it equals the input side of the
network, tiles are not resized; the interpolation is only for tiles of another side.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from asmil.slides.encoders.base import EncoderEntry
from asmil.slides.encoders.registry import register
from asmil.slides.encoders.vit import VisionTransformer, VitShape, vit_entry
from asmil.slides.encoders.vit_names import from_hugging_face_vit

NON_COMMERCIAL = "CC-BY-NC-ND-4.0"

VIT_S16 = VitShape(patch_px=16, width=384, depth=12, heads=6, hidden=1536)
VIT_B16 = VitShape(patch_px=16, width=768, depth=12, heads=12, hidden=3072)
VIT_L16 = VitShape(patch_px=16, width=1024, depth=24, heads=16, hidden=4096, layer_scale=True)
VIT_H14 = VitShape(patch_px=14, width=1280, depth=32, heads=16, hidden=6832, layer_scale=True, swiglu=True)
VIT_G14 = VitShape(patch_px=14, width=1536, depth=40, heads=24, hidden=8192, layer_scale=True, swiglu=True)

UNI2_H = replace(VIT_G14, depth=24, registers=8, positions="patches")
VIRCHOW = replace(VIT_H14, readout="class_and_mean")
VIRCHOW2 = replace(VIRCHOW, registers=4)
H_OPTIMUS = replace(VIT_G14, registers=4, positions="patches")
GIGAPATH = replace(VIT_G14, patch_px=16)
# the published configuration uses the epsilon of transformers, unlike other vision transformers
PHIKON = replace(VIT_B16, norm_eps=1e-12)

# statistics of the training tiles, as published by Lunit; the copy on the hub states those of ImageNet instead
LUNIT_MEAN, LUNIT_STD = (0.70322989, 0.53606487, 0.66096631), (0.21716536, 0.26081574, 0.20723464)
H_OPTIMUS_MEAN, H_OPTIMUS_STD = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)


def _entry(name: str, summary: str, shape: VitShape, tile_px: int, licence: str, hub: str) -> EncoderEntry:
    return replace(vit_entry(name, summary, shape, tile_px, licence, hub), hub_file="pytorch_model.bin", gated=True)


_LUNIT = _entry(
    "lunit_vits16",
    "ViT-S/16 by DINO on 33 million tiles (Kang et al., 2023)",
    VIT_S16,
    224,
    "Lunit, non-commercial",
    "1aurent/vit_small_patch16_224.lunit_dino",
)
_LUNIT = replace(_LUNIT, mean=LUNIT_MEAN, std=LUNIT_STD, gated=False, hub_file="model.safetensors")
register(_LUNIT)
register(
    replace(
        _LUNIT,
        name="lunit_vits8",
        summary="ViT-S/8 by DINO on 33 million tiles (Kang et al., 2023)",
        build=partial(VisionTransformer, replace(VIT_S16, patch_px=8)),
        hub="1aurent/vit_small_patch8_224.lunit_dino",
        url="https://huggingface.co/1aurent/vit_small_patch8_224.lunit_dino",
    )
)

_UNI = _entry("uni", "ViT-L/16 by DINOv2 (Chen et al., 2024)", VIT_L16, 256, NON_COMMERCIAL, "MahmoodLab/UNI")
_UNI2_H = _entry("uni2_h", "ViT-H/14 by DINOv2, successor of UNI", UNI2_H, 256, NON_COMMERCIAL, "MahmoodLab/UNI2-h")
register(replace(_UNI, interpolation="bilinear"))
register(replace(_UNI2_H, interpolation="bilinear"))

register(
    _entry(
        "virchow",
        "ViT-H/14 by DINOv2; class token and mean of the patches (Vorontsov et al., 2024)",
        VIRCHOW,
        224,
        "Apache-2.0",
        "paige-ai/Virchow",
    )
)
register(
    _entry(
        "virchow2",
        "ViT-H/14 by DINOv2; class token and mean of the patches (Zimmermann et al., 2024)",
        VIRCHOW2,
        224,
        NON_COMMERCIAL,
        "paige-ai/Virchow2",
    )
)

_H_OPTIMUS_0 = _entry(
    "h_optimus_0", "ViT-g/14 by DINOv2 (Bioptimus, 2024)", H_OPTIMUS, 224, "Apache-2.0", "bioptimus/H-optimus-0"
)
_H_OPTIMUS_1 = _entry(
    "h_optimus_1", "ViT-g/14 by DINOv2 (Bioptimus, 2025)", H_OPTIMUS, 224, NON_COMMERCIAL, "bioptimus/H-optimus-1"
)
for _h_optimus in (_H_OPTIMUS_0, _H_OPTIMUS_1):
    register(replace(_h_optimus, mean=H_OPTIMUS_MEAN, std=H_OPTIMUS_STD, interpolation="bilinear"))

_GIGAPATH = _entry(
    "gigapath",
    "ViT-g/16 by DINOv2, tile encoder of Prov-GigaPath (Xu et al., 2024)",
    GIGAPATH,
    256,
    "Apache-2.0",
    "prov-gigapath/prov-gigapath",
)
register(replace(_GIGAPATH, resize_px=256))

_PHIKON = _entry(
    "phikon", "ViT-B/16 by iBOT (Filiot et al., 2023)", PHIKON, 224, "Owkin, non-commercial", "owkin/phikon"
)
_PHIKON_V2 = _entry(
    "phikon_v2", "ViT-L/16 by DINOv2 (Filiot et al., 2024)", VIT_L16, 224, "Owkin, non-commercial", "owkin/phikon-v2"
)
register(replace(_PHIKON, convert=from_hugging_face_vit, gated=False, interpolation="bilinear"))
register(replace(_PHIKON_V2, convert=from_hugging_face_vit, gated=False, hub_file="model.safetensors"))
