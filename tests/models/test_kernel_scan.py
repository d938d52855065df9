"""The kernels of the selective scan, in Triton's interpreter: the numbers and gradients of the plain form."""

import importlib.util

import pytest
import torch

from asmil.models.blocks import kernel_scan
from asmil.models.blocks.selective_scan import continued_scan, selective_scan

if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
    pytest.skip("needs Triton and its interpreter; tests/gpu has the test for a GPU", allow_module_level=True)

CHANNELS, STATES = 5, 3


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(kernel_scan, "CHUNK", 8)
    monkeypatch.setattr(kernel_scan, "CHANNELS", 2)


def drawn(tiles):
    draw = torch.Generator().manual_seed(0)
    shapes = [(tiles, CHANNELS), (tiles, CHANNELS), (CHANNELS, STATES), (tiles, STATES), (tiles, STATES)]
    dt, u, a, b, c = (torch.randn(shape, generator=draw) for shape in shapes)
    return [part.requires_grad_() for part in (dt.exp(), u, -a.exp(), b, c)]


@pytest.mark.parametrize("tiles", [1, 8, 21])
def test_numbers_and_gradients(tiles):
    upstream = torch.randn(tiles, CHANNELS, generator=torch.Generator().manual_seed(1))
    results = []
    for form in (selective_scan, kernel_scan.scan):
        inputs = drawn(tiles)
        y = form(*inputs)
        results.append([y.detach(), *torch.autograd.grad(y, inputs, upstream)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_continued_from_a_state():
    inputs = [part.detach() for part in drawn(13)]
    state = torch.randn(CHANNELS, STATES, generator=torch.Generator().manual_seed(2))
    for found, expected in zip(kernel_scan.scan_from(*inputs, state), continued_scan(*inputs, state), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
