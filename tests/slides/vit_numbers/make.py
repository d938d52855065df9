"""Freezes what timm, transformers and open_clip answer, in the JSON files beside this script.

    pip install torch timm transformers open_clip_torch safetensors
    python tests/slides/vit_numbers/make.py

Small networks with drawn weights (`vit_weights.py`), one for every way in which the encoders differ, and the parameters
of the networks in full size.
"""

# ruff: noqa: E402 (timm imports only after torchvision's operators are known)

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

try:
    import torchvision  # noqa: F401
except RuntimeError:  # without its compiled part; timm needs its Python part only
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    library.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")

import open_clip
import timm
import transformers
from open_clip.transformer import AttentionalPooler
from open_clip.transformer import VisionTransformer as OpenClipTower
from safetensors.torch import load_file, save_file
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer as TimmTransformer
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    Dinov2Config,
    Dinov2Model,
    ViTConfig,
    ViTModel,
)

from vit_weights import draw_images, draw_state

SWIGLU = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}
SMALL = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 0, "dynamic_img_size": True}
SMALL14 = SMALL | {"img_size": 56}


class Conch(nn.Module):
    """CONCH's image tower as its repository puts it together: timm's trunk, open_clip's pooler, one LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Module()
        self.visual.trunk = TimmTransformer(patch_size=16, mlp_ratio=4, **SMALL)
        self.visual.attn_pool_contrast = AttentionalPooler(d_model=32, context_dim=48, n_head=8, n_queries=1)
        self.visual.ln_contrast = nn.LayerNorm(32)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.visual.trunk.forward_features(images)
        return self.visual.ln_contrast(self.visual.attn_pool_contrast(tokens)[:, 0])


class OpenClip(nn.Module):
    """The image tower under the name it has in a whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = OpenClipTower(64, 16, 48, 2, 3, 4.0, output_dim=24)

    def forward(self, images: Tensor) -> Tensor:
        return self.visual(images)


def class_and_mean(prefix: int) -> Callable[[nn.Module, Tensor], Tensor]:
    def read(model: nn.Module, images: Tensor) -> Tensor:
        tokens = model(images)
        return torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], dim=-1)

    return read


def hugging_face(model: Any, **options: Any) -> tuple[nn.Module, dict[str, list[int]]]:
    """A transformers model with drawn weights, set through a file with the published names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder, "model.safetensors")
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        save_file({n: torch.from_numpy(v) for n, v in draw_state(shapes).items()}, path, {"format": "pt"})
        loaded = type(model).from_pretrained(folder, **options).eval()
    return loaded, shapes


def drawn(model: nn.Module) -> tuple[nn.Module, dict[str, list[int]]]:
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(values) for name, values in draw_state(shapes).items()})
    return model.eval(), shapes


def freeze(
    case: str,
    built: tuple[nn.Module, dict[str, list[int]]],
    sides: Iterable[tuple[int, int]],
    read: Callable[[nn.Module, Tensor], Tensor] = lambda model, images: model(images),
) -> None:
    model, shapes = built
    outputs = []
    for rows_px, columns_px in sides:
        with torch.inference_mode():
            features = read(model, torch.from_numpy(draw_images(2, rows_px, columns_px))).double()
        outputs.append(
            {"sides": [rows_px, columns_px], "features": [[round(x, 7) for x in row] for row in features.tolist()]}
        )
    write(case, {"libraries": VERSIONS, "shapes": shapes, "outputs": outputs})


def parameters(model: nn.Module) -> dict[str, Any]:
    lines = sorted(f"{name} {'x'.join(map(str, p.shape))}" for name, p in model.state_dict().items())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return {"parameters": sum(p.numel() for p in model.parameters()), "sha256": digest}


def count(model: nn.Module) -> dict[str, int]:
    """Of models with other names than timm's; a mask token is for training only."""
    return {"parameters": sum(p.numel() for name, p in model.named_parameters() if "mask_token" not in name)}


def write(name: str, content: Any) -> None:
    text = json.dumps(content, separators=(",", ":"))
    for key in ('"shapes":', '"outputs":', '{"sides":'):
        text = text.replace(key, "\n" + key)
    HERE.joinpath(f"{name}.json").write_text(text + "\n")


VERSIONS = {module.__name__: module.__version__ for module in (torch, timm, transformers, open_clip)}


def small() -> None:
    build = timm.create_model
    freeze("lunit", drawn(build("vit_small_patch16_224", **SMALL)), [(64, 64)])
    freeze("uni", drawn(build("vit_large_patch16_224", init_values=1e-5, **SMALL)), [(64, 64), (96, 96), (64, 112)])
    uni2 = {"patch_size": 14, "init_values": 1e-5, "mlp_ratio": 2.66667 * 2, "no_embed_class": True, "reg_tokens": 8}
    freeze("uni2_h", drawn(build("vit_giant_patch14_224", **uni2, **SWIGLU, **SMALL14)), [(56, 56), (84, 84)])
    virchow = {"init_values": 1e-5, "mlp_ratio": 5.3375, "global_pool": "", **SWIGLU, **SMALL14}
    freeze("virchow", drawn(build("vit_huge_patch14_224", **virchow)), [(56, 56)], class_and_mean(1))
    virchow2 = build("vit_huge_patch14_224", reg_tokens=4, **virchow)
    freeze("virchow2", drawn(virchow2), [(56, 56), (70, 70)], class_and_mean(5))
    freeze("h_optimus", drawn(build("vit_giant_patch14_reg4_dinov2", global_pool="token", **SMALL14)), [(56, 56)])
    gigapath = {"patch_size": 16, "mlp_ratio": 5.33334, "init_values": 1e-5}
    freeze("gigapath", drawn(build("vit_giant_patch14_dinov2", **gigapath, **SMALL)), [(64, 64)])
    common = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 64, "patch_size": 16}
    first = lambda model, images: model(images).last_hidden_state[:, 0]  # noqa: E731
    phikon = ViTModel(ViTConfig(intermediate_size=192, **common), add_pooling_layer=False)
    freeze("phikon", hugging_face(phikon, add_pooling_layer=False), [(64, 64)], first)
    freeze("phikon_v2", hugging_face(Dinov2Model(Dinov2Config(mlp_ratio=4, **common))), [(64, 64)], first)
    plip = CLIPVisionModelWithProjection(CLIPVisionConfig(intermediate_size=192, projection_dim=24, **common))
    freeze("plip", hugging_face(plip), [(64, 64)], lambda model, images: model(images).image_embeds)
    freeze("pathgen", drawn(OpenClip()), [(64, 64)])
    freeze("conch", drawn(Conch()), [(64, 64)])


def full() -> None:
    build, whole = timm.create_model, {"img_size": 224, "num_classes": 0, "dynamic_img_size": True}
    scaled = whole | {"init_values": 1e-5}
    wide = {"embed_dim": 1536, "num_heads": 24}
    uni2 = {"patch_size": 14, "depth": 24, "mlp_ratio": 2.66667 * 2, "no_embed_class": True, "reg_tokens": 8, **SWIGLU}
    virchow = {"mlp_ratio": 5.3375, "global_pool": "", **SWIGLU}
    gigapath = {"patch_size": 16, "depth": 40, "mlp_ratio": 5.33334}
    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    phikon_v2 = Dinov2Config(image_size=224, patch_size=16, **large)
    with torch.device("meta"):
        models = {
            "lunit_vits16": build("vit_small_patch16_224", **whole),
            "lunit_vits8": build("vit_small_patch8_224", **whole),
            "uni": build("vit_large_patch16_224", **scaled),
            "uni2_h": build("vit_giant_patch14_224", **uni2, **wide, **scaled),
            "virchow": build("vit_huge_patch14_224", **virchow, **scaled),
            "virchow2": build("vit_huge_patch14_224", reg_tokens=4, **virchow, **scaled),
            "h_optimus_0": build("vit_giant_patch14_reg4_dinov2", global_pool="token", **scaled),
            "gigapath": build("vit_giant_patch14_dinov2", **gigapath, **wide, **whole),
        }
        others = {
            "phikon": ViTModel(ViTConfig(), add_pooling_layer=False),
            "phikon_v2": Dinov2Model(phikon_v2),
            "plip": CLIPVisionModelWithProjection(CLIPConfig().vision_config),
            "pathgen_clip_l": open_clip.create_model("ViT-L-14-336", load_weights=False, device="meta").visual,
        }
    sizes = {name: parameters(model) for name, model in models.items()}
    write("full_size", sizes | {name: count(model) for name, model in others.items()})


if __name__ == "__main__":
    small()
    full()
