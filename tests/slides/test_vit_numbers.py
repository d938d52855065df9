"""Our networks against timm, transformers and open_clip; `vit_numbers/make.py` froze what those answer."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from asmil.slides.encoders.registry import encoders, find_encoder
from asmil.slides.encoders.state import empty_network
from asmil.slides.encoders.swin import SwinTransformer
from asmil.slides.encoders.vit import VisionTransformer, fold_layer_scales
from vit_cases import CASES, frozen, loaded
from vit_weights import draw_images


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_small_network_answers_as_the_other_library(case: str) -> None:
    network = loaded(case)
    for output in frozen(case)["outputs"]:
        features = network(torch.from_numpy(draw_images(2, *output["sides"])))
        torch.testing.assert_close(features, torch.tensor(output["features"]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", ["uni", "uni2_h", "virchow2"])
@torch.inference_mode()
def test_folded_layer_scales_change_nothing(case: str) -> None:
    output = frozen(case)["outputs"][0]
    network = fold_layer_scales(loaded(case))
    features = network(torch.from_numpy(draw_images(2, *output["sides"])))
    assert not any("ls1" in name or "ls2" in name for name in network.state_dict())
    torch.testing.assert_close(features, torch.tensor(output["features"]), atol=1e-5, rtol=0)


FULL_SIZE = frozen("full_size") | frozen("full_size_recent")


@pytest.mark.parametrize("encoder", FULL_SIZE)
def test_full_size_network_has_the_parameters_of_the_other_library(encoder: str) -> None:
    network = empty_network(find_encoder(encoder))
    expected = FULL_SIZE[encoder]
    assert sum(parameter.numel() for parameter in network.parameters()) == expected["parameters"]
    if "sha256" in expected:
        lines = sorted(f"{name} {'x'.join(map(str, p.shape))}" for name, p in network.state_dict().items())
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == expected["sha256"]


def test_every_transformer_is_compared() -> None:
    transformers = {
        name
        for name, entry in encoders().items()
        if any(isinstance(module, VisionTransformer | SwinTransformer) for module in empty_network(entry).modules())
    }
    same_network = {"lunit_vits8": "lunit_vits16", "h_optimus_0": "h_optimus_1"}
    compared = {encoder for encoder, _ in CASES.values()}
    page = (
        (Path(__file__).parents[2] / "docs" / "encoders.md")
        .read_text()
        .split("## What was verified")[1]
        .split("\n## ")[0]
    )
    page = page.split("\n\n")[1]
    not_compared = {name for name in transformers if f"`{name}`" in page or f"`{name.split('_')[0]}_*`" in page}
    assert {same_network.get(name, name) for name in transformers - not_compared} == compared
