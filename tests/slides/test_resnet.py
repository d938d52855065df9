"""ResNets by torchvision's names, CLAM's cut and DSMIL's embedder."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from asmil.errors import AsmilError
from asmil.slides.encoders.fused import fold_batch_norms
from asmil.slides.encoders.registry import find_encoder, load_encoder
from asmil.slides.encoders.resnet import BasicBlock, ResNet
from asmil.slides.encoders.state import empty_network
from drawn_weights import drawn_state, drawn_tiles


def drawn(name, seed=0):
    network = find_encoder(name).build()
    return drawn_state(network, seed)


def classifier(width):
    return {"fc.weight": torch.zeros(1000, width), "fc.bias": torch.zeros(1000)}


@pytest.mark.parametrize(
    ("name", "parameters", "last"),
    [
        # 11,689,512 and 25,557,032 are torchvision's counts with the classifier of 1000 x (width + 1)
        ("resnet18", 11_689_512 - 513_000, "layer4.1.bn2.weight"),
        ("resnet50", 25_557_032 - 2_049_000, "layer4.2.bn3.weight"),
    ],
)
def test_names_and_sizes_are_torchvisions(name, parameters, last):
    network = empty_network(find_encoder(name))
    assert sum(tensor.numel() for tensor in network.parameters()) == parameters
    state = network.state_dict()
    assert {"conv1.weight", "bn1.running_mean", "layer2.0.downsample.0.weight", last} <= state.keys()
    assert state["conv1.weight"].shape == (64, 3, 7, 7)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50_trunc", "resnet18_simclr"])
def test_features_are_torchvisions(name):
    numbers = json.loads((Path(__file__).parent / "cnn_numbers" / "numbers.json").read_text())["features"]
    entry = find_encoder(name)
    network = entry.build().eval()
    whole = {"resnet50_trunc": "resnet50"}.get(name, name)
    with_classifier = nn.Module()
    with_classifier.add_module("network", find_encoder(whole).build())
    with_classifier.fc = nn.Linear(find_encoder(whole).width, 1000)
    drawn_whole = {key.removeprefix("network."): value for key, value in drawn_state(with_classifier, seed=3).items()}
    network.load_state_dict(entry.convert(drawn_whole))
    x = drawn_tiles(1, 64, seed=7).permute(0, 3, 1, 2).float() / 255
    with torch.inference_mode():
        features = fold_batch_norms(network)(x)[:, ::40]
    expected = torch.tensor(numbers[name])
    torch.testing.assert_close(features, expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet50_trunc", "resnet18_simclr"])
def test_folding_changes_nothing(name):
    network = find_encoder(name).build()
    network.load_state_dict(drawn_state(network))
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        apart = network.eval()(x)
        folded = fold_batch_norms(network)(x)
    assert apart.shape == (1, find_encoder(name).width)
    torch.testing.assert_close(folded, apart, atol=1e-5 * float(apart.abs().max()), rtol=1e-5)


def test_a_block_is_written_out():
    block = BasicBlock(4, 8, 2, nn.BatchNorm2d).eval()
    block.load_state_dict(drawn_state(block))
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        out = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu()))
        expected = (out + block.downsample[1](block.downsample[0](x))).relu()
        torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-5)


def test_clams_cut_is_the_third_stage_of_the_whole(tmp_path):
    state = drawn("resnet50")
    path = tmp_path / "resnet50.safetensors"
    save_file(state | classifier(2048), path)
    trunc = load_encoder("resnet50_trunc", path)
    whole = ResNet(*find_encoder("resnet50").build.args).eval()
    whole.load_state_dict(state)
    found = {}
    whole.layer3.register_forward_hook(lambda module, inputs, output: found.update(third=output))
    tiles = drawn_tiles(1, 256)
    with torch.inference_mode():
        whole(find_encoder("resnet50_trunc").transform(tiles))
    assert trunc.width == 1024
    torch.testing.assert_close(trunc(tiles), found["third"].mean((2, 3)), atol=1e-4, rtol=1e-3)


def simclr_checkpoint(state):
    """The order and names of DSMIL's training: a sequence of the network's children, then the projection."""
    places = {"conv1": "0", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    renamed = OrderedDict()
    for name, tensor in state.items():
        head, _, rest = name.partition(".")
        renamed[f"features.{places[head]}.{rest}"] = tensor
    for layer, width in (("l1", 512), ("l2", 256)):
        renamed[f"{layer}.weight"], renamed[f"{layer}.bias"] = torch.zeros(width, 512), torch.zeros(width)
    return renamed


def test_dsmils_checkpoint_by_order_is_ours_by_name(tmp_path):
    """DSMIL drops the last four tensors and names the others, in order, as its own network does."""
    state = drawn("resnet18_simclr")
    assert all(tensor.dim() == 4 for tensor in state.values())
    checkpoint = simclr_checkpoint(state)
    torch.save(checkpoint, tmp_path / "model.pth")
    in_order = dict(zip(state, list(checkpoint.values())[:-4], strict=True))
    network = find_encoder("resnet18_simclr").build().eval()
    network.load_state_dict(in_order)
    tiles = drawn_tiles(2, 224)
    encoder = load_encoder("resnet18_simclr", tmp_path / "model.pth")
    with torch.inference_mode():
        expected = network(tiles.permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(encoder(tiles), expected, atol=1e-4, rtol=1e-3)
    embedder = {f"feature_extractor.{name}": tensor for name, tensor in state.items()}
    torch.save(embedder | {"fc.weight": torch.zeros(2, 512), "fc.bias": torch.zeros(2)}, tmp_path / "embedder.pth")
    assert load_encoder("resnet18_simclr", tmp_path / "embedder.pth").weights_hash == encoder.weights_hash


def test_imagenets_file_is_not_dsmils(tmp_path):
    save_file(drawn("resnet18") | classifier(512), tmp_path / "resnet18.safetensors")
    with pytest.raises(AsmilError, match=r"resnet18_simclr.*\bresnet18\b[^_.]") as told:
        load_encoder("resnet18_simclr", tmp_path / "resnet18.safetensors")
    assert "bn1." in str(told.value)
    assert "\n" not in str(told.value)
