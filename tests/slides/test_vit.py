"""Vision transformers as encoders: loading, precision, positions, batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from asmil.errors import AsmilError
from asmil.slides.encoders.base import Encoder, EncoderEntry
from asmil.slides.encoders.registry import assemble, encoders, find_encoder
from asmil.slides.encoders.state import empty_network
from asmil.slides.encoders.vit import VisionTransformer, interpolated_positions
from vit_cases import CASES, frozen, loaded, published
from vit_weights import draw_images


def small_entry(case: str) -> EncoderEntry:
    """The registered entry of a case, with its small network."""
    name, build = CASES[case]
    side_px, width = frozen(case)["outputs"][0]["sides"][0], len(frozen(case)["outputs"][0]["features"][0])
    return replace(find_encoder(name), build=build, input_px=side_px, resize_px=None, width=width)


def load(case: str, weights: Path, precision: str = "float32") -> Encoder:
    return assemble(small_entry(case), weights, torch.device("cpu"), precision)


def tiles(n: int, side_px: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (n, side_px, side_px, 3), dtype=torch.uint8, generator=generator)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_published_names_load_from_a_file(case: str, tmp_path: Path) -> None:
    save_file(published(case), tmp_path / "weights.safetensors")
    torch.save({"state_dict": {f"module.{n}": t for n, t in published(case).items()}}, tmp_path / "weights.pth")
    safe, wrapped = load(case, tmp_path / "weights.safetensors"), load(case, tmp_path / "weights.pth")
    assert safe.weights_hash == wrapped.weights_hash
    entry = small_entry(case)
    inputs = tiles(3, entry.input_px or 0)
    with torch.inference_mode():
        expected = loaded(case)(entry.transform(inputs))
    torch.testing.assert_close(safe(inputs), expected, atol=1e-5, rtol=1e-4)
    assert safe(inputs).shape == (3, entry.width)


def test_other_towers_and_poolers_are_left_out(tmp_path: Path) -> None:
    extra = {
        "phikon": ["pooler.dense.weight"],
        "plip": ["text_model.final_layer_norm.weight", "logit_scale", "text_projection.weight"],
        "pathgen": ["transformer.resblocks.0.ln_1.weight", "logit_scale", "token_embedding.weight"],
        "keep": ["text.embeddings.word_embeddings.weight", "logit_scale"],
        "musk": ["language_head.weight", "beit3.encoder.layers.0.ffn.B.fc1.weight", "beit3.text_embed.weight"],
        "hibou": ["embeddings.mask_token"],
        "ctranspath": ["head.weight", "layers.0.blocks.1.attn_mask", "layers.0.blocks.1.attn.relative_position_index"],
        "conch": ["text.cls_emb", "visual.proj_contrast", "visual.attn_pool_caption.query", "logit_scale"],
    }
    for name, besides in extra.items():
        save_file(published(name) | {key: torch.zeros(2) for key in besides}, tmp_path / f"{name}.safetensors")
        assert load(name, tmp_path / f"{name}.safetensors").width == small_entry(name).width


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    lacking = published("uni")
    del lacking["blocks.1.ls2.gamma"]
    save_file(lacking, tmp_path / "uni.safetensors")
    with pytest.raises(AsmilError, match=r"uni\.safetensors.*blocks\.1\.ls2\.gamma"):
        load("uni", tmp_path / "uni.safetensors")
    save_file(published("uni"), tmp_path / "timm.safetensors")
    with pytest.raises(AsmilError, match=r"phikon.*cls_token"):
        load("phikon", tmp_path / "timm.safetensors")
    misshapen = published("plip") | {"vision_model.embeddings.position_embedding.weight": torch.zeros(5, 48)}
    save_file(misshapen, tmp_path / "plip.safetensors")
    with pytest.raises(AsmilError, match=r"pos_embed.*1.*5.*48.*1.*17.*48"):
        load("plip", tmp_path / "plip.safetensors")


def test_bf16_is_close_to_float32(case: str, tmp_path: Path) -> None:
    save_file(published(case), tmp_path / "weights.safetensors")
    inputs = tiles(4, small_entry(case).input_px or 0)
    whole = load(case, tmp_path / "weights.safetensors")(inputs)
    half = load(case, tmp_path / "weights.safetensors", "bf16")(inputs)
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(half, whole).min() > 0.999


@torch.inference_mode()
def test_weights_may_be_bf16_outright(case: str) -> None:
    network = loaded(case)
    images = torch.from_numpy(draw_images(4, *frozen(case)["outputs"][0]["sides"]))
    whole, half = network(images), network.bfloat16()(images.bfloat16())
    assert half.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(half.float(), whole).min() > 0.999


@torch.inference_mode()
def test_tiles_do_not_see_each_other(case: str) -> None:
    network = loaded(case)
    images = torch.from_numpy(draw_images(5, *frozen(case)["outputs"][0]["sides"]))
    together = network(images)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(network(images[order]), together[order], atol=1e-5, rtol=0)
    for index in range(len(images)):
        torch.testing.assert_close(network(images[index : index + 1])[0], together[index], atol=1e-5, rtol=0)


@given(side=st.integers(1, 6), first=st.integers(0, 5), rows=st.integers(1, 9), columns=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_positions_of_any_grid(side: int, first: int, rows: int, columns: int) -> None:
    embedding = torch.randn(1, first + side * side, 4, generator=torch.Generator().manual_seed(side))
    grid = interpolated_positions(embedding, first, rows, columns)
    assert grid.shape == (1, first + rows * columns, 4)
    torch.testing.assert_close(grid[:, :first], embedding[:, :first])
    constant = torch.cat([embedding[:, :first], torch.full((1, side * side, 4), 0.7)], dim=1)
    same = interpolated_positions(constant, first, rows, columns)[:, first:]
    torch.testing.assert_close(same, torch.full_like(same, 0.7))
    assert interpolated_positions(embedding, first, side, side) is embedding


def test_entries_agree_with_their_networks() -> None:
    for name in {encoder for encoder, _ in CASES.values()} | {"lunit_vits8", "h_optimus_0"}:
        entry = encoders()[name]
        network = empty_network(entry)
        if isinstance(network, VisionTransformer):
            assert (entry.width, entry.input_px) == (network.shape.features, network.shape.image_px), name
        assert entry.url == f"https://huggingface.co/{entry.hub}"
