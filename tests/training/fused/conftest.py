"""Triton's kernels run in its interpreter on a machine without a GPU, in float32."""

from __future__ import annotations

import importlib.util

import pytest
import torch


@pytest.fixture(autouse=True)
def interpreted_kernels(monkeypatch):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed here: pip install triton")
    if torch.cuda.is_available():
        pytest.skip("these tests are for Triton's interpreter; tests/gpu has those for a GPU")
    from asmil.training.fused import forward, step

    # fewer programs, since the interpreter runs one after the other
    monkeypatch.setattr(forward, "POOL_PARTS", 2)
    monkeypatch.setattr(step, "TILE_PARTS", 2)
    monkeypatch.setattr(step, "STEM_PARTS", 2)
