import math

import pytest
import torch

from asmil import Bag, build
from asmil.models import official
from asmil.tasks.classification import Classification


def plain_stream(h, regressor):
    """Tile logits, attention and bag logits of one stream, as the paper writes them."""
    tiles = h @ regressor
    margin = tiles[:, 1] - tiles[:, 0]
    score = (margin - margin.mean()) / torch.sqrt(margin.var(unbiased=False) + 1e-5)
    attention = torch.softmax(score, dim=0)
    return tiles, attention, (attention[:, None] * h).sum(dim=0) @ regressor


def embedded(model, x):
    for layer in model.embedding.layers:
        x = torch.relu(x @ layer.weight.T + layer.bias)
    return x


def make(outputs, **options):
    torch.manual_seed(0)
    return build("rgmil", 12, outputs, inner=9, **options).eval()


def test_two_outputs_are_one_stream():
    model, x = make(2), torch.randn(7, 12)
    tiles, attention, logits = plain_stream(embedded(model, x), model.regressor[0])
    output = model(Bag(x))
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.instance_logits, tiles)
    torch.testing.assert_close(model.tile_map(output), attention)
    assert output.scores.shape == (1, 7)


def test_one_output_is_the_margin_of_the_stream():
    model, x = make(1), torch.randn(7, 12)
    _, attention, logits = plain_stream(embedded(model, x), model.regressor[0])
    output = model(Bag(x))
    torch.testing.assert_close(output.logits, (logits[1] - logits[0])[None])
    torch.testing.assert_close(model.tile_map(output), attention)
    torch.testing.assert_close(output.logits[0], (attention * output.instance_logits[:, 0]).sum())


def test_more_classes_have_one_stream_each():
    model, x = make(4), torch.randn(7, 12)
    output = model(Bag(x))
    h = embedded(model, x)
    for c in range(4):
        tiles, attention, logits = plain_stream(h, model.regressor[c])
        torch.testing.assert_close(output.logits[c], logits[1] - logits[0])
        torch.testing.assert_close(output.instance_logits[:, c], tiles[:, 1] - tiles[:, 0])
        torch.testing.assert_close(torch.softmax(output.scores, dim=1)[c], attention)
        if c == output.logits.argmax():
            torch.testing.assert_close(model.tile_map(output), attention)


def test_one_tile_gives_its_own_logits():
    model = make(2)
    output = model(Bag(torch.randn(1, 12)))
    assert torch.equal(output.scores, torch.zeros(1, 1))
    torch.testing.assert_close(output.logits, output.instance_logits[0])


def test_attention_does_not_see_the_scale_of_the_regressor_and_is_bounded():
    model, bag = make(2), Bag(torch.randn(30, 12))
    before = model(bag)
    with torch.no_grad():
        model.regressor *= 100
    torch.testing.assert_close(model(bag).scores, before.scores, rtol=1e-3, atol=1e-3)
    assert before.scores.abs().max() <= math.sqrt(29)


def test_equal_tiles_share_the_attention():
    output = make(2)(Bag(torch.ones(5, 12)))
    torch.testing.assert_close(torch.softmax(output.scores, dim=1), torch.full((1, 5), 0.2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("trains", [False, True])
def test_the_regressor_is_trained_only_where_asked_for(trains):
    model = make(2, train_regressor=trains).train()
    model.loss([model(Bag(torch.randn(6, 12)))], torch.tensor([1]), Classification(["a", "b"])).total.backward()
    trained = {id(parameter) for group in model.parameter_groups() for parameter in group["params"]}
    assert (id(model.regressor) in trained) == trains
    assert (model.regressor.grad is not None) == trains
    assert model.embedding.layers[0].weight.grad.abs().max() > 0
    assert "regressor" in model.state_dict()


def test_regressor_starts_with_a_fan_in_of_two():
    torch.manual_seed(0)
    regressor = build("rgmil", 12, 3).regressor
    assert regressor.shape == (3, 512, 2)
    assert regressor.abs().max() <= math.sqrt(3)
    assert regressor.std() == pytest.approx(1, abs=0.05)


def test_loads_the_official_names():
    model = make(2)
    tensors = {"linear": model.regressor[0].detach()}
    for ours, theirs in ((0, 0), (1, 2)):
        layer = model.embedding.layers[ours]
        tensors |= {
            f"stem.stem.{theirs}.weight": layer.weight.detach(),
            f"stem.stem.{theirs}.bias": layer.bias.detach(),
        }
    bag = Bag(torch.randn(4, 12))
    assert torch.equal(official.load(tensors)(bag).logits, model(bag).logits)
