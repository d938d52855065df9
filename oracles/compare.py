"""Our answers beside the official ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from oracles.problem import Expected, Oracle, Problem

TOLERANCE = 1e-5
NEGATIVE_CONTROL = re.compile(r"_vendored_reader$|^layer2_row0_headmean_padded$")
"""Outputs of a reader that takes a padding row; they are not to be matched."""
INDICES = re.compile(r"(^|_)(ids?|index|indices|selected|mask|targets|preds|y_hat|is_hard)(_|$)")
"""Outputs that must be equal, not close, where the file holds whole numbers."""


def tolerance(problem: Problem) -> float:
    """The largest error allowed, relative to the scale of an output."""
    if problem.method in ("transmil", "r2t") or (problem.method == "dtfd" and problem.mode == "train"):
        return 1e-4
    return {"ilra_vlsa": 2e-3, "caprmil": 3e-5}.get(problem.method, TOLERANCE)


@dataclass(frozen=True)
class Comparison:
    """How far one output is from the official one; `error` is absolute, `scale` what it is relative to."""

    output: str
    error: float
    scale: float
    passed: bool
    reason: str = ""

    @property
    def relative(self) -> float:
        """The error relative to the scale."""
        if self.error == 0:
            return 0.0
        return self.error / self.scale if self.scale else float("inf")


def compare(oracle: Oracle, ours: Mapping[str, Tensor]) -> list[Comparison]:
    """Every output of the file, except the negative controls."""
    allowed = tolerance(oracle.problem)
    return [
        _compare(name, expected, ours.get(name), allowed)
        for name, expected in oracle.expected.items()
        if not NEGATIVE_CONTROL.search(name)
    ]


def _compare(name: str, expected: Expected, answer: Tensor | None, allowed: float) -> Comparison:
    failed = float("inf")
    if answer is None:
        return Comparison(name, failed, 1.0, False, "not answered")
    values = expected.values.reshape(expected.shape).squeeze()
    found = answer.detach().double().cpu().squeeze()
    if found.shape != values.shape and found.ndim == 2:
        # N x C for C x N, or heads x tokens x N for (heads tokens) x N
        stacked = found.shape[-1] == values.shape[-1:].numel() and found.numel() == values.numel()
        found = found.reshape(values.shape) if stacked else found.t()
    if found.shape != values.shape:
        return Comparison(name, failed, 1.0, False, f"{tuple(answer.shape)} instead of {expected.shape}")
    if values.numel() == 0:
        return Comparison(name, 0.0, 1.0, True)
    error = float((found - values).abs().max())
    is_scalar_loss = values.numel() == 1 and (expected.shape == () or "loss" in name)
    scale = max(float(values.abs().max()), 1.0 if is_scalar_loss else 0.0)
    whole = bool((values == values.round()).all())
    limit = 0.0 if whole and INDICES.search(name) else allowed * scale
    # a NaN fails, since no comparison with it is true
    return Comparison(name, error, scale, error <= limit, "" if error <= limit else f"off by {error:.2e}")
