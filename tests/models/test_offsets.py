"""The offset of a bag is added to the logits of every method, in training and in prediction."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asmil import Bag, build, methods
from asmil.models.inference import infer
from asmil.tasks.classification import Classification
from asmil.training.gradients import StepGradients

WIDTH = 24
OFFSET = torch.tensor([2.0, -2.0])


def make_bag(tiles=30):
    draw = np.random.default_rng(tiles)
    coords = np.stack([np.arange(tiles) % 7, np.arange(tiles) // 7], axis=1) * 256
    return Bag(draw.normal(size=(tiles, WIDTH)).astype(np.float32), coords, id=f"bag-{tiles}")


@pytest.mark.parametrize("name", sorted(methods()))
def test_loss_and_prediction(name):
    torch.manual_seed(0)
    model = build(name, in_features=WIDTH, n_outputs=2)
    plain = model.prepare(make_bag())
    image = infer(model, plain).logits
    torch.testing.assert_close(infer(model, replace(plain, offset=OFFSET)).logits, image + OFFSET)
    step = StepGradients(model.train(), Classification(("a", "b")), {}, False, False)

    def loss(offset):
        model.use_generator(torch.Generator().manual_seed(0))
        bag = replace(plain, offset=offset)
        return float(step.loss_of(bag, torch.tensor([0]))[1]["loss"].detach())

    assert loss(OFFSET) < loss(None) < loss(-OFFSET)


def test_several_bags_at_once():
    torch.manual_seed(0)
    model = build("abmil", in_features=WIDTH, n_outputs=2).train()
    step = StepGradients(model, Classification(("a", "b")), {}, False, False)
    bags = [replace(make_bag(tiles), offset=factor * OFFSET) for tiles, factor in ((9, 1.0), (5, -0.3))]
    targets = torch.tensor([0, 1])
    for i, bag in enumerate(bags):
        step.of_one(bag, targets[i : i + 1], 2)
    single = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    batch = Bag.collate(bags)
    step.of_padded(batch.features, batch.mask, targets, offsets=[bag.offset for bag in bags])
    for parameter, gradient in zip(model.parameters(), single, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_chunks_get_the_offset_once():
    model = build("abmil", in_features=WIDTH, n_outputs=2)
    bag = replace(make_bag(), offset=OFFSET)
    torch.testing.assert_close(infer(model, bag, chunk_tiles=7).logits, infer(model, bag).logits)
