"""The forms that methods are measured beside compute the same logits."""

import pytest
import torch

from asmil import build
from measuring import make_bag
from method_speed import given, plain_form


@pytest.mark.parametrize("name", ["abmilx", "caprmil", "simlp", "sm_abmil"])
def test_logits(name):
    torch.manual_seed(0)
    model = build(name, 32, 2).eval()
    bag = model.prepare(make_bag(40, 32))
    plain = plain_form(model).eval()
    torch.testing.assert_close(plain(given(plain, bag)), model(bag).logits, rtol=1e-5, atol=1e-6)
