from dataclasses import replace

import pytest
import torch

from asmil import Bag, build, infer
from asmil.explain.kinds import explain_bag
from asmil.models.base import comparable_maps, of_one_class
from asmil.tasks.classification import Classification
from asmil.tasks.survival import Survival

TASK = Classification(["a", "b", "c"])


def make(outputs=3):
    torch.manual_seed(0)
    return build("simlp", 12, outputs, hidden=9).eval()


def test_is_the_network_on_the_mean():
    model, x = make(), torch.randn(7, 12)
    hidden = torch.relu(x.mean(dim=0) @ model.hidden.weight.T + model.hidden.bias)
    torch.testing.assert_close(model(Bag(x)).logits, hidden @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("tiles", [1, 7])
def test_contributions_and_offset_add_up_to_the_logits(tiles):
    output = make()(Bag(torch.randn(tiles, 12)))
    total = output.instance_logits.sum(dim=0) + output.extras["offset"]
    torch.testing.assert_close(total, output.logits, rtol=1e-5, atol=1e-6)


def test_the_map_is_that_of_the_class_asked_for():
    model, bag = make(), Bag(torch.randn(7, 12))
    columns = model(bag).instance_logits
    for index, name in enumerate(TASK.classes):
        shown = explain_bag(model, TASK, bag, name=name)
        assert shown.kind == "contribution"
        torch.testing.assert_close(shown.values.float(), columns[:, index].detach())


@pytest.mark.parametrize("method", ["simlp", "caprmil", "additive_mil"])
@pytest.mark.parametrize("loss", ["incidence", "hazard"])
def test_contributions_in_time_bins_are_those_to_the_risk(method, loss):
    task = Survival([0.0, 1.0, 2.0, 4.0, 9.0], loss)
    torch.manual_seed(0)
    model, bag = build(method, 12, 4).eval().double(), Bag(torch.randn(7, 12, dtype=torch.float64))
    output = infer(model, bag)
    (changed,) = comparable_maps([output], [task])
    shown = model.tile_map(changed, "contribution")
    step = 1e-6
    shares = torch.stack([model.tile_map(toward_logit(output, k), "contribution") for k in range(4)], dim=1)
    moved = task.evidence(output.logits + step * shares, 0) - task.evidence(output.logits - step * shares, 0)
    torch.testing.assert_close(shown, moved / (2 * step), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(explain_bag(model, task, bag, "contribution").values, shown)


def toward_logit(output, index):
    return replace(output, logits=torch.eye(4, dtype=torch.float64)[index])


def test_chunks_have_the_contributions_of_the_whole():
    model, bag = make(), Bag(torch.randn(50, 12))
    whole, parts = infer(model, bag), infer(model, bag, chunk_tiles=7)
    torch.testing.assert_close(parts.instance_logits, whole.instance_logits)
    torch.testing.assert_close(model.tile_map(parts), model.tile_map(whole))


def test_float16_features_do_not_overflow():
    features = torch.full((2000, 12), 60.0, dtype=torch.float16)  # their sum is beyond float16
    output = infer(make(), Bag(features))
    torch.testing.assert_close(output.embedding, torch.full((12,), 60.0))


def test_training_needs_no_contributions():
    assert make().train()(Bag(torch.randn(7, 12))).instance_logits is None


def test_maps_of_several_models_are_of_one_class():
    bag = Bag(torch.randn(7, 12))
    first, second = make(2)(bag), make(2)(bag)
    first.logits, second.logits = torch.tensor([0.0, 3.0]), torch.tensor([1.0, 0.0])
    maps = [make(2).tile_map(output) for output in of_one_class([first, second])]
    torch.testing.assert_close(maps[0], first.instance_logits[:, 1])
    torch.testing.assert_close(maps[1], second.instance_logits[:, 1])
