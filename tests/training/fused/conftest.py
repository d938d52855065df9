"""Triton's kernels run in its interpreter on a machine without a GPU, in float32.

Triton asks for the interpreter when it is imported, so the variable is set before any test runs; nothing else reads it.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


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
