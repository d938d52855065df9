"""The fused step beside the plain one: the same losses, gradients, weights and anchors, in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from asmil import Anchor, Bag, build
from asmil.training.turns import take_turns

LENGTHS = (1, 70, 130)


class Bags(list):
    def stream(self, order):
        return (self[i] for i in order)


def make_bags(width, lengths=LENGTHS):
    draw = torch.Generator().manual_seed(3)
    return Bags(Bag(torch.randn(n, width, generator=draw), id=f"bag {n}") for n in lengths)


def make_models(members, width, outputs, **settings):
    models = []
    for seed in range(members):
        torch.manual_seed(seed)
        models.append(build("asmil", width, outputs, init_std=1.0, **settings))
    return models


def make_step(models, bags, *, anchor_weight=0.7, class_weights=None, dropped=None, steps=8, lr=1e-3):
    """A step on the models' weights, with anchors a little away from them, and the models and anchors themselves."""
    from asmil.training.fused.forward import Dropped
    from asmil.training.fused.layout import Sizes
    from asmil.training.fused.step import Step, StepSettings
    from asmil.training.fused.weights import Weights
    from asmil.training.resident import ResidentBags

    sizes = Sizes.of(models[0])
    device = torch.device("cpu")
    resident = ResidentBags(sizes.features, device, torch.float32)
    resident.add(bags)
    resident.set_targets(resident.numbers(bags), np.arange(len(bags)) % sizes.outputs)
    weights = Weights(sizes, len(models), device, torch.float32)
    settings = StepSettings(
        dropped or Dropped(), anchor_weight, 0.9, 1e-2, (0.9, 0.999), class_weights or (1.0,) * sizes.outputs
    )
    n = torch.arange(1, steps + 1, dtype=torch.float64)
    schedule = torch.stack([lr / (1 - 0.9**n), (1 - 0.999**n).sqrt()], dim=1)
    step = Step(weights, resident, settings, max(resident.sizes), len(bags), schedule)
    anchors = []
    for p, model in enumerate(models):
        anchor = Anchor(model, momentum=0.9, weight=anchor_weight or 0.0)
        with torch.no_grad():
            for parameter in anchor.copy.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter) * parameter.std().nan_to_num())
        anchors.append(anchor)
        for name, parameter in model.named_parameters():
            weights.layout.view(weights.parameters, name)[p].copy_(parameter.detach())
        for name in weights.layout.anchor_names:
            weights.layout.view(weights.anchors, name)[p].copy_(anchor.copy.get_parameter(name))
    weights.refresh()
    return step, anchors


def plain_loss(model, anchor, bag, target, class_weights):
    output = model(bag)
    loss = functional.cross_entropy(output.logits[None], torch.tensor([target]))
    return class_weights[target] * loss, anchor.loss(bag, output.scores), output


@pytest.mark.parametrize(
    ("width", "inner", "tokens", "heads", "outputs"),
    [
        (32, 16, 4, 4, 3),
        *(pytest.param(*sizes, marks=pytest.mark.heavy) for sizes in ((48, 48, 4, 8, 2), (16, 144, 8, 2, 2))),
    ],
)
def test_losses_and_gradients_are_those_of_the_plain_step(width, inner, tokens, heads, outputs):
    bags = make_bags(width)
    models = make_models(len(bags), width, outputs, inner=inner, tokens=tokens, heads=heads, drop=0.0, dropout=0.0)
    weights = tuple(0.5 + k for k in range(outputs))
    step, anchors = make_step(models, bags, class_weights=weights)
    places = torch.arange(len(bags))  # every member at another bag
    step.forward.bag.copy_(places)
    step.target.copy_(places % outputs)
    step.compute_gradients()
    heatmaps = step.forward.heatmaps()
    for p, (model, anchor, bag) in enumerate(zip(models, anchors, bags, strict=True)):
        loss, held, output = plain_loss(model, anchor, bag, p % outputs, weights)
        (loss + held).backward()
        torch.testing.assert_close(step.losses[p], torch.stack([loss, held]).detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step.forward.logits[p], output.logits.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step.forward.embedding[p], output.embedding.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(heatmaps[p, : len(bag)], model.tile_map(output), rtol=1e-4, atol=1e-6)
        for name, parameter in model.named_parameters():
            found, scale = step.gradient(name)[p], max(float(parameter.grad.abs().max()), 1e-2)
            torch.testing.assert_close(found / scale, parameter.grad / scale, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.heavy
@pytest.mark.parametrize("anchor_weight", [None, 0.7])
def test_steps_move_weights_averages_and_anchors_as_adam_and_the_anchor_do(anchor_weight):
    models = make_models(2, 32, 2, inner=16, tokens=4, heads=4, drop=0.0, dropout=0.0)
    bags = make_bags(32, lengths=(70, 3))
    step, anchors = make_step(models, bags, anchor_weight=anchor_weight)
    orders = torch.stack([torch.arange(len(bags)), torch.arange(len(bags)).flip(0)])
    step.order.copy_(orders)
    for _ in range(2):
        take_turns([step.epoch()])
    assert step.step.tolist() == [2 * len(bags)] * 2
    layout = step.weights.layout
    for p, (model, anchor, order) in enumerate(zip(models, anchors, orders.tolist(), strict=True)):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-2)
        for place in 2 * order:
            optimizer.zero_grad()
            loss, held, _ = plain_loss(model, anchor, bags[place], place % 2, (1.0, 1.0))
            (loss + held if anchor_weight else loss).backward()
            optimizer.step()
            anchor.update(model)
        for name, parameter in model.named_parameters():
            found = layout.view(step.weights.parameters, name)[p]
            # where a gradient is only rounding (biases of keys), Adam's first steps are its sign
            moved = (found - parameter.detach()).abs()
            assert moved.median() < 1e-4, name
        if anchor_weight:
            for name in layout.anchor_names:
                found = layout.view(step.weights.anchors, name)[p]
                assert (found - anchor.copy.get_parameter(name)).abs().median() < 1e-4, name


@pytest.mark.heavy
def test_a_member_has_the_same_bits_alone_and_beside_others():
    from asmil.training.fused.forward import Dropped

    bags, found = make_bags(32, lengths=(70, 3)), []
    for chosen in ([0, 1], [1]):
        models = make_models(2, 32, 2, inner=16, tokens=4, heads=4)
        torch.manual_seed(9)
        step, _ = make_step(models, bags, dropped=Dropped(0.3, 0.5))
        alone, _ = make_step([models[p] for p in chosen], bags, dropped=Dropped(0.3, 0.5))
        for mine, theirs in ((alone.weights.anchors, step.weights.anchors),):
            mine.copy_(theirs[chosen])
        alone.weights.refresh()
        alone.keys.copy_(torch.tensor([10 + p for p in chosen]))
        alone.order.copy_(torch.stack([torch.arange(len(bags)).roll(p) for p in chosen]))
        take_turns([alone.epoch()])
        found.append(alone.weights.parameters[chosen.index(1)])
    assert torch.equal(found[0], found[1])


@pytest.mark.heavy
def test_random_masks_depend_on_the_key_and_the_step_alone():
    from asmil.training.fused.forward import Dropped

    models = make_models(1, 32, 2, inner=16, tokens=4, heads=4)
    step, _ = make_step(models, make_bags(32), dropped=Dropped(0.5, 0.5))
    seen = []
    for key, number in ((1, 0), (1, 1), (2, 0), (1, 0)):
        step.keys.fill_(key)
        step.step.fill_(number)
        step.order.fill_(0)
        step.begin()
        step.run()
        seen.append(((step.forward.outputs == 0).clone(), (step.forward.attention == 0).clone()))
        assert bool((step.forward.attention > 0).any(dim=-1).all())
        torch.testing.assert_close(step.forward.attention.sum(dim=-1), torch.ones(1, 4))
    assert torch.equal(seen[0][0], seen[3][0])
    assert torch.equal(seen[0][1], seen[3][1])
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][0], seen[2][0])
    share = torch.stack([masks[0].float().mean() for masks in seen]).mean()
    assert 0.3 < share < 0.7
