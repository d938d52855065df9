"""On a GPU: the kernels of the selective scan have the numbers and gradients of the plain form."""

import pytest
import torch

from asmil.models.blocks import kernel_scan
from asmil.models.blocks.selective_scan import continued_scan, selective_scan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")


def drawn(tiles, channels, states):
    draw = torch.Generator().manual_seed(0)
    shapes = [(tiles, channels), (tiles, channels), (channels, states), (tiles, states), (tiles, states)]
    dt, u, a, b, c = (torch.randn(shape, generator=draw) for shape in shapes)
    return [part.cuda().requires_grad_() for part in (0.1 * dt.exp(), u, -a.exp(), b, c)]


@pytest.mark.parametrize(("tiles", "channels", "states"), [(600, 5, 3), (10_007, 256, 16)])
def test_numbers_and_gradients(tiles, channels, states, monkeypatch):
    upstream = torch.randn(tiles, channels, generator=torch.Generator().manual_seed(1)).cuda()
    results = []
    for has_triton in (False, True):
        monkeypatch.setattr(kernel_scan, "HAS_TRITON", has_triton)
        inputs = drawn(tiles, channels, states)
        y = selective_scan(*inputs)
        ends = continued_scan(*inputs, torch.ones(channels, states, device="cuda"))
        results.append([y.detach(), *torch.autograd.grad(y, inputs, upstream), *ends])
    for expected, found in zip(*results, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * scale)
