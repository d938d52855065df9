"""The registry, the transform, running an encoder, and encoders of the user's own."""

import dataclasses
import re
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from asmil.errors import AsmilError
from asmil.machine.bf16 import cpu_has_bf16
from asmil.slides.encoders import base
from asmil.slides.encoders.base import Transform, center_crop, resized, resized_in_floats
from asmil.slides.encoders.fused import convolved, fold_batch_norms
from asmil.slides.encoders.own_callable import confirmed_encoder
from asmil.slides.encoders.registry import chosen_precision, encoders, find_encoder, load_encoder
from asmil.slides.encoders.state import state_hash
from drawn_weights import drawn_state, drawn_tiles
from shared_data import REPOSITORY


@pytest.fixture(scope="module")
def lite():
    return load_encoder("efficientnet_lite0")


# The registry


def test_every_entry_says_what_a_user_must_know():
    for name, entry in encoders().items():
        assert name == entry.name
        assert re.fullmatch(r"[a-z0-9_]+", name)
        assert entry.summary
        assert entry.licence
        assert entry.url.startswith("https://")
        assert entry.width > 0
        assert 0.1 < entry.mpp < 4
        assert entry.input_px is None or entry.transform.resize_px >= entry.input_px
        assert not entry.gated or entry.hub


def test_the_page_lists_the_encoders_there_are():
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| (\d+) px at ([\d.]+) \| ([^|]*) \|",
        (REPOSITORY / "docs" / "encoders.md").read_text(),
        re.MULTILINE,
    )
    documented = {
        name: (int(width), int(side), float(mpp), licence.strip()) for name, width, side, mpp, licence in rows
    }
    assert documented == {
        name: (entry.width, entry.tile_px, entry.mpp, entry.licence + (", gated" if entry.gated else ""))
        for name, entry in encoders().items()
    }


def test_an_unknown_encoder_is_answered_with_the_nearest():
    with pytest.raises(AsmilError, match=r"efficientnet_lit0.*'efficientnet_lite0'"):
        load_encoder("efficientnet_lit0")


def test_auto_precision_is_bf16_on_a_gpu_where_it_is_exact_enough(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr("asmil.machine.bf16.cpu_has_bf16", lambda: True)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert chosen_precision("auto", cpu) == "float32"
    assert chosen_precision("auto", gpu) == "bf16"
    assert chosen_precision("auto", gpu, exact_in_bf16=False) == "float32"
    assert chosen_precision("bf16", cpu, exact_in_bf16=False) == "bf16"


# The transform


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("side_px", "new_px"), [(256, 224), (512, 448), (100, 224)])
def test_resizing_is_pillows(interpolation, side_px, new_px):
    tiles = drawn_tiles(1, side_px)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[interpolation]
    pillow = np.asarray(Image.fromarray(tiles[0].numpy()).resize((new_px, new_px), method)).astype(int)
    on_a_cpu = resized(tiles, new_px, interpolation)[0]
    on_a_gpu = resized_in_floats(tiles.permute(0, 3, 1, 2), new_px, interpolation)[0].permute(1, 2, 0)
    for ours, differing in ((on_a_cpu, 0.01), (on_a_gpu, 0.1)):
        difference = np.abs(ours.numpy().astype(int) - pillow)
        assert difference.max() <= 2
        assert (difference > 0).mean() < differing


def test_normalizing_is_the_formula_and_channels_stay_last():
    tiles = drawn_tiles(2, 40)
    transform = Transform(None, None, "bilinear", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    found = transform(tiles)
    expected = (tiles.double() / 255 - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.4, 0.5, 0.6])
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected.float().permute(0, 3, 1, 2), atol=2e-6, rtol=0)


def test_resize_and_crop_take_the_middle():
    tiles = drawn_tiles(1, 256)
    transform = Transform(256, 224, "bicubic", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    torch.testing.assert_close(transform(tiles) * 255, tiles[:, 16:240, 16:240].permute(0, 3, 1, 2).float())
    assert center_crop(torch.zeros(1, 7, 8, 3), 4).shape == (1, 4, 4, 3)


# Folding


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]))
def test_folded_is_unfolded(seed, channels, kernel, stride):
    pair = nn.Sequential(
        nn.Conv2d(3, 3 * channels, kernel, stride, kernel // 2, groups=3, bias=bool(seed % 2)),
        nn.BatchNorm2d(3 * channels, 1e-3),
    )
    pair.load_state_dict(drawn_state(pair, seed))
    x = torch.randn(2, 3, 12, 11, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        apart = pair.eval()(x)
        for activation, reference in (("none", apart), ("relu", apart.relu()), ("relu6", apart.clamp(0, 6))):
            torch.testing.assert_close(convolved(x, *pair, activation), reference, atol=1e-5, rtol=1e-5)
        fold_batch_norms(pair)
        assert isinstance(pair[1], nn.Identity)
        for activation, reference in (("none", apart), ("relu", apart.relu()), ("relu6", apart.clamp(0, 6))):
            torch.testing.assert_close(convolved(x, *pair, activation), reference, atol=1e-5, rtol=1e-5)


def test_without_onednn_the_same_comes_out(lite, monkeypatch):
    tiles = drawn_tiles(2, 64)
    fused = lite(tiles)
    monkeypatch.setattr("asmil.slides.encoders.fused._ONEDNN_CONVOLUTION", None)
    torch.testing.assert_close(lite(tiles), fused, atol=1e-4, rtol=1e-4)


# Running


def test_tiles_do_not_know_of_each_other(lite, monkeypatch):
    tiles = drawn_tiles(7, 64)
    together = lite(tiles)
    assert together.shape == (7, 1280)
    assert together.dtype == torch.float32
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    torch.testing.assert_close(lite(tiles[order]), together[order], atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(base, "CPU_PIXELS", 2 * 64 * 64)
    torch.testing.assert_close(lite(tiles), together, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(lite(tiles[4:5]), together[4:5], atol=1e-4, rtol=1e-4)


def test_no_tiles_are_no_features(lite):
    assert lite(torch.zeros(0, 256, 256, 3, dtype=torch.uint8)).shape == (0, 1280)


def test_too_small_tiles_are_refused(lite):
    with pytest.raises(AsmilError, match=r"efficientnet_lite0.*16 x 16 px.*32 px"):
        lite(torch.zeros(1, 16, 16, 3, dtype=torch.uint8))


@pytest.mark.skipif(not cpu_has_bf16(), reason="this CPU has no bf16")
def test_bf16_is_near_float32(lite):
    tiles = drawn_tiles(4, 128)
    half = load_encoder("efficientnet_lite0", precision="bf16")(tiles)
    assert half.dtype == torch.float32
    assert torch.cosine_similarity(half, lite(tiles)).min() > 0.99


@pytest.mark.parametrize("encoder", ["efficientnet_lite0", "own"])
def test_bf16_is_refused_where_the_cpu_has_none(encoder, own_module, monkeypatch):
    monkeypatch.setattr("asmil.machine.bf16.cpu_has_bf16", lambda: False)
    name = f"{own_module}:Means" if encoder == "own" else encoder
    with pytest.raises(AsmilError, match=r"bf16.*CPU.*float32"):
        load_encoder(name, precision="bf16")
    assert load_encoder(name).precision == "float32"


# Encoders of the user's own

OWN = """
    import torch
    from torch import nn

    class Means(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x):
            assert not self.training
            return x.mean((2, 3)) * self.scale

    def function():
        return lambda x: x.amax((2, 3))

    def fixed_side():
        network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
        network.tile_px, network.mpp = 8, 1.0
        return network

    def one_side_only():
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))

    def broken():
        raise RuntimeError("no weights\\nhere")

    def number():
        return 4

    def map_of_features():
        return lambda x: x

    def needs(path):
        return None
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch, request):
    name = "own_" + re.sub(r"\W", "_", request.node.name)
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def test_own_module_and_function(own_module):
    tiles = drawn_tiles(3, 20)
    means = load_encoder(f"{own_module}:Means")
    assert (means.name, means.width) == (f"{own_module}:Means", 3)
    assert means.weights_hash == state_hash({"scale": torch.full((3,), 2.0)})
    torch.testing.assert_close(means(tiles), tiles.float().mean((1, 2)) / 255 * 2)
    largest = load_encoder(f"{own_module}:function")
    assert largest.weights_hash == ""
    torch.testing.assert_close(largest(tiles), tiles.amax((1, 2)).float() / 255)
    entry = find_encoder(f"{own_module}:Means")
    assert (entry.width, entry.tile_px, entry.mpp) == (3, 256, 0.5)


def test_own_encoder_says_which_tiles_it_takes(own_module):
    entry = find_encoder(f"{own_module}:fixed_side")
    assert (entry.width, entry.tile_px, entry.mpp) == (5, 8, 1.0)
    assert load_encoder(f"{own_module}:fixed_side")(drawn_tiles(2, 8)).shape == (2, 5)
    if cpu_has_bf16():
        half = load_encoder(f"{own_module}:fixed_side", precision="bf16")(drawn_tiles(2, 8))
        assert half.dtype == torch.float32


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("Meanz", "'Meanz'.*'Means'"),
        ("broken", "RuntimeError: no weights here"),
        ("needs", "TypeError"),
        ("number", " int"),
        ("map_of_features", "2, 3, 256, 256"),
        ("one_side_only", "256 px .*RuntimeError.*tile_px"),
    ],
)
def test_mistakes_in_own_encoders_are_one_sentence(own_module, attribute, words):
    with pytest.raises(AsmilError, match=f"{own_module}:{attribute}.*{words}") as told:
        load_encoder(f"{own_module}:{attribute}")
    assert "\n" not in str(told.value)


def test_own_module_that_is_not_there_or_does_not_import(own_module, tmp_path):
    with pytest.raises(AsmilError, match="'nowhere_to_be_found'"):
        load_encoder("nowhere_to_be_found:Net")
    (tmp_path / "does_not_parse.py").write_text("def f(:\n")
    with pytest.raises(AsmilError, match=r"does_not_parse .*SyntaxError"):
        load_encoder("does_not_parse:f")
    with pytest.raises(AsmilError, match="--weights"):
        load_encoder(f"{own_module}:Means", tmp_path / "weights.pth")


def test_the_page_has_an_own_encoder_that_runs(tmp_path, monkeypatch):
    code = re.search(r"```python own_encoder\n(.*?)```", (REPOSITORY / "docs" / "encoders.md").read_text(), re.DOTALL)
    (tmp_path / "my_encoder.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    encoder, from_file = load_encoder("my_encoder:build"), load_encoder("my_encoder.py:build")
    assert encoder(drawn_tiles(2, 224)).shape == (2, encoder.width)
    torch.testing.assert_close(from_file(drawn_tiles(2, 224)), encoder(drawn_tiles(2, 224)))


def test_files_of_own_encoders_are_found_by_path_and_confirmed(tmp_path):
    (tmp_path / "an encoder.py").write_text("def build():\n    return lambda tiles: tiles.mean((2, 3))\n")
    name = f"{tmp_path / 'an encoder.py'}:build"
    assert load_encoder(name).width == 3
    with pytest.raises(AsmilError, match=r"none\.py"):
        load_encoder(f"{tmp_path / 'none.py'}:build")
    with pytest.raises(AsmilError, match="'build'"):
        load_encoder(f"{tmp_path / 'an encoder.py'}:bild")
    with pytest.raises(AsmilError, match=r"config\.yaml.*an encoder\.py"):
        confirmed_encoder(name, None, "run/config.yaml")
    elsewhere = f"{tmp_path / '..' / tmp_path.name / 'an encoder.py'}:build"
    assert [confirmed_encoder(name, given, "run/config.yaml") for given in (name, elsewhere)] == [name, elsewhere]
    for wrong in ("resnet18", f"{tmp_path / 'an encoder.py'}:other"):
        with pytest.raises(AsmilError, match="an encoder"):
            confirmed_encoder(name, wrong, "run/config.yaml")
    with pytest.raises(AsmilError, match="resnet18"):
        confirmed_encoder("resnet18", name, "run/config.yaml")


def test_entries_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_encoder("resnet18").width = 3
