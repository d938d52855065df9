"""Freezes what the public code of CTransPath, MUSK, KEEP and Hibou-L answers, in the JSON files beside this script.

    pip install torch timm timm_ctp transformers safetensors einops fairscale
    git clone https://github.com/Xiyue-Wang/TransPath; git clone https://github.com/lilab-stanford/MUSK
    git clone https://github.com/HistAI/hibou
    python tests/slides/vit_numbers/make_recent.py TransPath MUSK hibou

Small networks with drawn weights (`vit_weights.py`), and the number of parameters in full size. Hibou's code at the hub
is not among them: transformers' Dinov2 with registers answers under the published names, and must agree with the
authors' own repository.
"""

# ruff: noqa: E402 (timm imports only after torchvision's operators are known)

from __future__ import annotations

import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterable
from importlib import import_module
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

import timm
import timm_ctp
import transformers
from safetensors.torch import load_file, save_file
from timm_ctp.models.swin_transformer import SwinTransformer
from torch import Tensor, nn
from torch.nn import functional
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from vit_weights import draw_images, draw_state

TRANSPATH, MUSK, HIBOU = (Path(folder).resolve() for folder in sys.argv[1:4])
VERSIONS = {
    "torch": torch.__version__,
    "timm": timm.__version__,
    "timm_ctp": timm_ctp.__version__,
    "transformers": transformers.__version__,
}
DERIVED = ("relative_position_index", "attn_mask", "num_batches_tracked", "logit_scale")


def conv_stem() -> type[nn.Module]:
    """CTransPath's stem, from its repository, which expects the modified timm under timm's name."""
    code = (TRANSPATH / "ctran.py").read_text().replace("from timm.", "from timm_ctp.")
    module = types.ModuleType("ctran")
    exec(compile(code.replace("import timm\n", "import timm_ctp as timm\n"), "ctran.py", "exec"), module.__dict__)
    stem: type[nn.Module] = module.ConvStem
    return stem


class Keep(nn.Module):
    """KEEP's image tower as its repository puts it together: timm's transformer and two layers."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__()
        self.visual = timm.create_model(
            "vit_large_patch16_224", pretrained=False, init_values=1e-5, num_classes=0, dynamic_img_size=True, **options
        )
        layers = nn.Linear(self.visual.num_features, width), nn.GELU(), nn.Linear(width, width)
        self.visual_head = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return functional.normalize(self.visual_head(self.visual(images)), dim=-1)


def musk(image_px: int, width: int, heads: int, depth: int) -> nn.Module:
    """MUSK of another size: its configuration with these numbers."""
    sys.path.insert(0, str(MUSK))
    modeling = import_module("musk.modeling")
    # Its text tower is not compared, so its vocabulary may be small.
    config = modeling._get_large_config(img_size=image_px, vocab_size=8)
    config.encoder_embed_dim, config.encoder_attention_heads, config.encoder_layers = width, heads, depth
    config.encoder_ffn_embed_dim = 4 * width
    model: nn.Module = modeling.MUSK(config)
    return model


def hibou(width: int, heads: int, depth: int, image_px: int) -> nn.Module:
    """Hibou's network from its repository, of another size."""
    # The package itself imports what only its segmentation needs.
    package = types.ModuleType("hibou")
    package.__path__ = [str(HIBOU / "hibou")]
    sys.modules["hibou"] = package
    network = import_module("hibou.models.vision_transformer")
    model: nn.Module = network.DinoVisionTransformer(
        img_size=image_px,
        patch_size=14,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        init_values=1e-5,
        ffn_layer="swiglufused",
        block_chunks=0,
        num_register_tokens=4,
        interpolate_offset=0,
        interpolate_antialias=True,
    )
    return model


def dinov2(width: int, heads: int, depth: int, image_px: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """What Hibou's hub describes: transformers' Dinov2 with registers, and its drawn weights by their published names.

    Set through a file, because the names in memory are others.
    """
    config = Dinov2WithRegistersConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        patch_size=14,
        image_size=image_px,
        num_register_tokens=4,
        use_swiglu_ffn=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        Dinov2WithRegistersModel(config).save_pretrained(folder)
        path = Path(folder, "model.safetensors")
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        state = {name: torch.from_numpy(values) for name, values in draw_state(shapes).items()}
        save_file(state, path, {"format": "pt"})
        return Dinov2WithRegistersModel.from_pretrained(folder).eval(), state


def drawn(model: nn.Module) -> tuple[nn.Module, dict[str, list[int]]]:
    shapes = {
        name: list(tensor.shape)
        for name, tensor in model.state_dict().items()
        if not name.endswith(DERIVED) and not name.startswith("head.")
    }
    state = {name: torch.from_numpy(values) for name, values in draw_state(shapes).items()}
    model.load_state_dict(model.state_dict() | state)
    return model.eval(), shapes


def answers(model: nn.Module, side_px: int, read: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
    with torch.inference_mode():
        return read(model, torch.from_numpy(draw_images(2, side_px, side_px)))


def freeze(
    case: str,
    built: tuple[nn.Module, dict[str, list[int]]],
    sides: Iterable[int],
    read: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    model, shapes = built
    outputs = []
    for side_px in sides:
        features = answers(model, side_px, read)
        rows = [[round(x, 7) for x in row] for row in features.double().tolist()]
        outputs.append({"sides": [side_px, side_px], "features": rows})
    write(case, {"libraries": VERSIONS, "shapes": shapes, "outputs": outputs})
    return features


def write(name: str, content: Any) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n")


def called(model: nn.Module, images: Tensor) -> Tensor:
    return model(images)  # type: ignore[no-any-return]


def class_token(two_scales: bool) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda model, images: model(image=images, with_head=False, out_norm=False, ms_aug=two_scales)[0]


def small() -> None:
    stem = {"embed_layer": conv_stem(), "num_classes": 0}
    swin = {"img_size": 56, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 7}
    freeze("ctranspath", drawn(SwinTransformer(**swin, **stem)), [56], called)
    freeze("keep", drawn(Keep(32, img_size=64, embed_dim=48, depth=2, num_heads=3)), [64, 96], called)
    freeze("musk", drawn(musk(64, 48, 3, 2)), [64], class_token(two_scales=False))
    freeze("musk_two_scales", drawn(musk(64, 48, 3, 2)), [64], class_token(two_scales=True))

    model, state = dinov2(48, 3, 2, 56)
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    published = freeze("hibou", (model, shapes), [56], lambda model, images: model(images).pooler_output)
    torch.testing.assert_close(answers(same_weights_in_hibou(state), 56, called), published, atol=1e-5, rtol=0)


def same_weights_in_hibou(state: dict[str, Tensor]) -> nn.Module:
    """The authors' network with the weights of the transformers network, renamed here by hand."""
    model = hibou(48, 3, 2, 56)
    ours = {
        "cls_token": state["embeddings.cls_token"],
        "pos_embed": state["embeddings.position_embeddings"],
        "mask_token": state["embeddings.mask_token"],
        "register_tokens": state["embeddings.register_tokens"],
        "norm.weight": state["layernorm.weight"],
        "norm.bias": state["layernorm.bias"],
    }
    for leaf in ("weight", "bias"):
        ours[f"patch_embed.proj.{leaf}"] = state[f"embeddings.patch_embeddings.projection.{leaf}"]
        for index in range(2):
            theirs, block = f"encoder.layer.{index}", f"blocks.{index}"
            parts = [state[f"{theirs}.attention.attention.{part}.{leaf}"] for part in ("query", "key", "value")]
            ours[f"{block}.attn.qkv.{leaf}"] = torch.cat(parts)
            ours[f"{block}.attn.proj.{leaf}"] = state[f"{theirs}.attention.output.dense.{leaf}"]
            ours[f"{block}.mlp.w12.{leaf}"] = state[f"{theirs}.mlp.weights_in.{leaf}"]
            ours[f"{block}.mlp.w3.{leaf}"] = state[f"{theirs}.mlp.weights_out.{leaf}"]
            for norm in ("norm1", "norm2"):
                ours[f"{block}.{norm}.{leaf}"] = state[f"{theirs}.{norm}.{leaf}"]
            for number in ("1", "2"):
                ours[f"{block}.ls{number}.gamma"] = state[f"{theirs}.layer_scale{number}.lambda1"]
    model.load_state_dict(ours)
    return model.eval()


def full() -> None:
    """Parameters of the image towers in full size."""
    with torch.device("meta"):
        swin = timm_ctp.create_model("swin_tiny_patch4_window7_224", num_classes=0, embed_layer=conv_stem())
        keep = Keep(768, img_size=224, patch_size=16)
        large = hibou(1024, 16, 24, 224)
        musk_large = musk(384, 1024, 16, 24)
    image_expert = (".A.", "beit3.vision_embed.")
    unused = ("mask_token", "num_position")
    sizes = {
        "ctranspath": sum(p.numel() for p in swin.parameters()),
        "keep": sum(p.numel() for p in keep.parameters()),
        # one position fewer: ours is added to the class token as the weights are read
        "hibou_l": sum(p.numel() for name, p in large.named_parameters() if "mask_token" not in name) - 1024,
        # the first two positions belong to no token
        "musk": sum(
            p.numel()
            for name, p in musk_large.named_parameters()
            if any(part in name for part in image_expert) and not any(part in name for part in unused)
        )
        - 2 * 1024,
    }
    sizes["musk_two_scales"] = sizes["musk"]
    write("full_size_recent", {name: {"parameters": size} for name, size in sizes.items()})


if __name__ == "__main__":
    small()
    full()
