"""Adam over pieces of the parameters: the bits of torch's own fused step."""

import copy

import pytest
import torch

from asmil.training.graphed.step import adam_step


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_pieces_give_the_same_bits(kind):
    torch.manual_seed(0)
    # more values than one piece has, and a number that pieces do not divide
    model = torch.nn.Sequential(torch.nn.Linear(300, 401), torch.nn.Linear(401, 3))
    models = [model, copy.deepcopy(model)]
    optimizers = [kind(one.parameters(), lr=1e-2, weight_decay=1e-2, fused=True) for one in models]
    for step in range(4):
        rows = torch.randn(7, 300)
        for one, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            one(rows).square().sum().backward()
            one[1].bias.grad = None if step == 2 else one[1].bias.grad  # a part that a step does not reach
        optimizers[0].step()
        if step == 0:  # torch fills the state at its first step
            optimizers[1].step()
        else:
            adam_step(optimizers[1])
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    steps = [
        [float(optimizer.state[p]["step"]) for p in one.parameters()]
        for one, optimizer in zip(models, optimizers, strict=True)
    ]
    assert steps[0] == steps[1] == [4, 4, 4, 3]
