import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil import AsmilError, build
from asmil.runs.config import TrainingConfig, resolve
from asmil.training.optimization import build_optimizer, clip_gradients, lr_factor, set_lr


@given(st.integers(1, 500), st.integers(0, 50), st.sampled_from(["cosine", "constant"]))
def test_the_learning_rate_rises_then_never_rises_again(steps, warmup, schedule):
    warmup = min(warmup, steps - 1)
    config = TrainingConfig(schedule=schedule, warmup_epochs=warmup)
    factors = [lr_factor(step, steps, 1, config) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup] == 1
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)


def test_cosine_is_half_way_in_the_middle():
    assert lr_factor(50, 100, 1, TrainingConfig()) == pytest.approx(0.5)
    assert lr_factor(100, 100, 1, TrainingConfig()) == pytest.approx(0, abs=1e-15)


def test_the_cosine_may_end_above_zero_and_the_rate_may_fall_in_steps():
    ending = TrainingConfig(lr=1e-4, lr_min=2e-5)
    assert lr_factor(100, 100, 10, ending) == pytest.approx(0.2)
    assert lr_factor(50, 100, 10, ending) == pytest.approx(0.6)
    falling = TrainingConfig(schedule="constant", lr_drops=[2, 4], lr_drop_factor=0.5)
    assert [lr_factor(step, 60, 10, falling) for step in (0, 19, 20, 39, 40, 59)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    with pytest.raises(AsmilError, match="lr_min"):
        resolve("abmil", changes={"training": {"lr_min": 1.0}})
    with pytest.raises(AsmilError, match="betas"):
        resolve("abmil", changes={"training": {"betas": [0.5, 1.0]}})


def test_vectors_may_be_left_out_of_the_decay():
    config = resolve("abmil", changes={"training": {"decay": "matrices", "weight_decay": 0.1}})
    model = build("abmil", 8, 2)
    optimizer = build_optimizer(model, config.training)
    decays = {parameter: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert all(decays[parameter] == (0.1 if parameter.ndim > 1 else 0.0) for parameter in model.parameters())


def test_lookahead_goes_half_way_back_every_sixth_step():
    model = build("abmil", 8, 2)
    settings = {"optimizer": "lookahead_radam", "lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99)}
    optimizer = build_optimizer(model, resolve("abmil", changes={"training": settings}).training)
    twin = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    plain = torch.optim.RAdam(twin, lr=0.01, betas=(0.8, 0.99), weight_decay=0.1, decoupled_weight_decay=True)
    slow = None
    for step in range(1, 19):
        for mine, other in zip(model.parameters(), twin, strict=True):
            mine.grad = torch.full_like(mine, math.sin(step))
            other.grad = mine.grad.clone()
        optimizer.step()
        plain.step()
        if step % 6 == 0:
            fast = [other.detach().clone() for other in twin]
            slow = fast if slow is None else [s + 0.5 * (f - s) for s, f in zip(slow, fast, strict=True)]
            with torch.no_grad():
                for other, value in zip(twin, slow, strict=True):
                    other.copy_(value)
        for mine, other in zip(model.parameters(), twin, strict=True):
            torch.testing.assert_close(mine.detach(), other.detach())


def test_a_group_with_a_limit_of_its_own_is_clipped_by_itself():
    one, two, three = (torch.nn.Parameter(torch.zeros(4)) for _ in range(3))
    optimizer = torch.optim.Adam([{"params": [one], "clip_norm": 5.0}, {"params": [two]}, {"params": [three]}])
    for parameter in (one, two, three):
        parameter.grad = torch.full((4,), 10.0)
    clip_gradients(optimizer, None)
    assert [round(float(p.grad.norm()), 3) for p in (one, two, three)] == [5.0, 20.0, 20.0]
    clip_gradients(optimizer, 1.0)
    assert float(one.grad.norm()) == pytest.approx(5.0, rel=1e-4)
    assert float(torch.cat([two.grad, three.grad]).norm()) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_optimizers_equal_torchs(kind):
    config = resolve("abmil", changes={"training": {"optimizer": kind, "lr": 0.01, "weight_decay": 0.1}})
    model = build("abmil", 8, 2)
    optimizer = build_optimizer(model, config.training)
    reference = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}
    theirs = kinds[kind](reference, lr=0.005, weight_decay=0.1)
    for mine, other in zip(model.parameters(), reference, strict=True):
        mine.grad = torch.ones_like(mine)
        other.grad = torch.ones_like(other)
    assert set_lr(optimizer, 0.5) == pytest.approx(0.005)
    optimizer.step()
    theirs.step()
    for mine, other in zip(model.parameters(), reference, strict=True):
        torch.testing.assert_close(mine.detach(), other.detach())
    assert math.isclose(optimizer.param_groups[0]["base_lr"], 0.01)
