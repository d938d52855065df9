import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asmil import build
from asmil.training.config import resolve
from asmil.training.optimization import build_optimizer, lr_factor, set_lr


@given(st.integers(1, 500), st.integers(0, 50), st.sampled_from(["cosine", "constant"]))
def test_the_learning_rate_rises_then_never_rises_again(steps, warmup, schedule):
    warmup = min(warmup, steps - 1)
    factors = [lr_factor(step, steps, warmup, schedule) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup] == 1
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)


def test_cosine_is_half_way_in_the_middle():
    assert lr_factor(50, 100, 0, "cosine") == pytest.approx(0.5)
    assert lr_factor(100, 100, 0, "cosine") == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_optimizers_equal_torchs(kind):
    config = resolve("abmil", changes={"training": {"optimizer": kind, "lr": 0.01, "weight_decay": 0.1}})
    model = build("abmil", 8, 2)
    optimizer = build_optimizer(model, config.training)
    reference = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    theirs = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](reference, lr=0.005, weight_decay=0.1)
    for mine, other in zip(model.parameters(), reference, strict=True):
        mine.grad = torch.ones_like(mine)
        other.grad = torch.ones_like(other)
    assert set_lr(optimizer, 0.5) == pytest.approx(0.005)
    optimizer.step()
    theirs.step()
    for mine, other in zip(model.parameters(), reference, strict=True):
        torch.testing.assert_close(mine.detach(), other.detach())
    assert math.isclose(optimizer.param_groups[0]["base_lr"], 0.01)
