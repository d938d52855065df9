"""EfficientNet-Lite0 with its published weights."""

import json
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import nn

from asmil.slides.encoders import efficientnet_lite
from asmil.slides.encoders.efficientnet_lite import clear_border, padded, same_padding
from asmil.slides.encoders.fused import fold_batch_norms
from asmil.slides.encoders.registry import find_encoder, load_encoder
from asmil.slides.encoders.state import empty_network, fill, fitted, read_state
from drawn_weights import drawn_tiles

PALACE, DAISY = 698, 985
"""ImageNet's classes of the two pictures that scikit-learn brings along: a palace roof, and a flower of that kind."""


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("efficientnet_lite0")


@pytest.fixture(scope="module")
def published():
    return read_state(find_encoder("efficientnet_lite0").embedded())


def squares(picture):
    """Four overlapping squares of a picture, 224 px each, uint8."""
    image = torch.from_numpy(load_sample_image(picture).copy()).permute(2, 0, 1)[None]
    side = image.shape[2] - 27
    crops = [image[:, :, top : top + side, left : left + side] for top in (0, 27) for left in (90, 150)]
    small = [nn.functional.interpolate(crop, (224, 224), mode="bicubic", antialias=True) for crop in crops]
    return torch.cat(small).permute(0, 2, 3, 1)


@pytest.mark.parametrize(("picture", "label"), [("china.jpg", PALACE), ("flower.jpg", DAISY)])
def test_it_recognizes_photographs(encoder, published, picture, label):
    logits = encoder(squares(picture)) @ published["_fc.weight"].T + published["_fc.bias"]
    assert logits.argmax(1).tolist() == [label] * 4


def test_the_padding_is_tensorflows(encoder, published, monkeypatch):
    """With symmetric padding, which shifts every strided convolution, the flower is recognized less surely."""

    def sureness():
        logits = encoder(squares("flower.jpg")) @ published["_fc.weight"].T + published["_fc.bias"]
        return logits.softmax(1)[:, DAISY].mean()

    same = sureness()
    monkeypatch.setattr(
        efficientnet_lite, "same_padding", lambda side_px, kernel, stride: (kernel // 2, kernel - 1 - kernel // 2)
    )
    assert same > 1.2 * sureness()


@pytest.mark.parametrize("side_px", [256, 255, 100])
def test_features_are_timms(encoder, side_px):
    numbers = json.loads((Path(__file__).parent / "cnn_numbers" / "numbers.json").read_text())["features"]
    expected = torch.tensor(numbers[f"efficientnet_lite0_{side_px}"])
    features = encoder(drawn_tiles(2, side_px, seed=5))[:, ::40]
    torch.testing.assert_close(features, expected, atol=2e-5, rtol=1e-4)


def test_the_weights_are_the_ones_of_these_numbers(encoder):
    assert encoder.weights_hash == "719efddea4b8a3e9ff32ca0c4066e73af69c4bbc370df7199eb005dbb8def2f7"


def test_folding_changes_nothing(published):
    entry = find_encoder("efficientnet_lite0")
    state = fitted(entry, published, empty_network(entry))
    network = fill(empty_network(entry), state).eval()
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        apart = network(x)
        folded = fold_batch_norms(network)(x)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    torch.testing.assert_close(folded, apart, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("side_px", [32, 33, 100, 255])
def test_any_side_goes_in(encoder, side_px):
    assert encoder(drawn_tiles(1, side_px)).isfinite().all()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("side_px", [1, 2, 7, 8, 31])
def test_same_padding_counts_as_tensorflow(side_px, kernel, stride):
    before, after = same_padding(side_px, kernel, stride)
    assert 0 <= after - before <= 1
    outputs = (side_px + before + after - kernel) // stride + 1
    assert outputs == -(-side_px // stride)


def test_the_border_that_is_cleared_is_what_was_padded():
    x = torch.ones(1, 2, 9, 6)
    around = padded(x, 5, 2)
    filled = torch.ones_like(around)
    clear_border(filled, 5, 2, x.shape)
    assert torch.equal(filled, around)
