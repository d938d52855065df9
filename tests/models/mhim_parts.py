"""What the tests of MHIM share: a small model, a bag, and a training step as the loop takes it."""

import torch

from asmil import Bag, build
from asmil.tasks.classification import Classification

WIDTH = 16
TASK = Classification(["a", "b", "c"])
BASES = ("abmil", "transmil", "dsmil")


def make(n_classes=3, **options):
    torch.manual_seed(0)
    return build("mhim", WIDTH, n_classes, inner=16, **options)


def make_bag(tiles=20, seed=1):
    return Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(seed)))


def step(model, bag=None, lr=0.1):
    bag = make_bag() if bag is None else bag
    optimizer = torch.optim.SGD(model.parameter_groups(), lr=lr)
    model.train().use_generator(torch.Generator().manual_seed(3))
    output = model(bag)
    loss = model.loss([output], torch.tensor([1]), TASK)
    loss.total.backward()
    optimizer.step()
    model.after_step(bag, output, torch.tensor([1]))
    return output, loss
