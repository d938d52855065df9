"""Entries of vision transformers trained on pathology slides without labels, as published by their authors.

Every tile side is the authors' recommendation for slides at 20x (0.5 um/px). If it equals the input side of the
network, tiles are not resized; the interpolation is only for tiles of another side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from asmil.slides.encoders.registry import register_vit
from asmil.slides.encoders.vit import VitShape
from asmil.slides.encoders.vit_names import from_hugging_face_vit

NON_COMMERCIAL, OWKIN = "CC-BY-NC-ND-4.0", "Owkin, non-commercial"

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
_GATED: dict[str, Any] = {"gated": True, "hub_file": "pytorch_model.bin"}
_UNI: dict[str, Any] = {**_GATED, "tile_px": 256, "interpolation": "bilinear"}
_GIGAPATH: dict[str, Any] = {**_GATED, "tile_px": 256, "resize_px": 256}
_H_OPTIMUS: dict[str, Any] = {**_GATED, "mean": H_OPTIMUS_MEAN, "std": H_OPTIMUS_STD, "interpolation": "bilinear"}
_PHIKON: dict[str, Any] = {"convert": from_hugging_face_vit}
_PHIKON_V1: dict[str, Any] = {**_PHIKON, "hub_file": "pytorch_model.bin", "interpolation": "bilinear"}
_VIRCHOW, _BIOPTIMUS = "ViT-H/14 by DINOv2; class token and mean of the patches", "ViT-g/14 by DINOv2 (Bioptimus"
_GIGAPATH_SUMMARY = "ViT-g/16 by DINOv2, tile encoder of Prov-GigaPath (Xu et al., 2024)"

for _patch in (16, 8):
    register_vit(
        f"lunit_vits{_patch}",
        f"ViT-S/{_patch} by DINO on 33 million tiles (Kang et al., 2023)",
        replace(VIT_S16, patch_px=_patch),
        "Lunit, non-commercial",
        f"1aurent/vit_small_patch{_patch}_224.lunit_dino",
        mean=LUNIT_MEAN,
        std=LUNIT_STD,
    )
for _name, _summary, _shape, _licence, _hub, _others in (
    ("uni", "ViT-L/16 by DINOv2 (Chen et al., 2024)", VIT_L16, NON_COMMERCIAL, "MahmoodLab/UNI", _UNI),
    ("uni2_h", "ViT-H/14 by DINOv2, successor of UNI", UNI2_H, NON_COMMERCIAL, "MahmoodLab/UNI2-h", _UNI),
    ("virchow", f"{_VIRCHOW} (Vorontsov et al., 2024)", VIRCHOW, "Apache-2.0", "paige-ai/Virchow", _GATED),
    ("virchow2", f"{_VIRCHOW} (Zimmermann et al., 2024)", VIRCHOW2, NON_COMMERCIAL, "paige-ai/Virchow2", _GATED),
    ("h_optimus_0", f"{_BIOPTIMUS}, 2024)", H_OPTIMUS, "Apache-2.0", "bioptimus/H-optimus-0", _H_OPTIMUS),
    ("h_optimus_1", f"{_BIOPTIMUS}, 2025)", H_OPTIMUS, NON_COMMERCIAL, "bioptimus/H-optimus-1", _H_OPTIMUS),
    ("gigapath", _GIGAPATH_SUMMARY, GIGAPATH, "Apache-2.0", "prov-gigapath/prov-gigapath", _GIGAPATH),
    ("phikon", "ViT-B/16 by iBOT (Filiot et al., 2023)", PHIKON, OWKIN, "owkin/phikon", _PHIKON_V1),
    ("phikon_v2", "ViT-L/16 by DINOv2 (Filiot et al., 2024)", VIT_L16, OWKIN, "owkin/phikon-v2", _PHIKON),
):
    register_vit(_name, _summary, _shape, _licence, _hub, **_others)
