"""Explanations of any method, by running it on whole bags: for methods whose tiles interact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.engine.jobs import made_progress
from asmil.errors import AsmilError
from asmil.explain.pooled_tiles import Evidence
from asmil.machine.memory import available_bytes
from asmil.models.base import MILModel
from asmil.models.inference import ESTIMATED_FROM_TILES, bytes_needed, infer

MOST_PASSES = 400
"""In bags with more tiles, groups of neighboring tiles are left out, since every group costs a pass over the bag."""
GRADIENT_MEMORY = 3
"""A pass with a gradient needs about this many times the memory of a pass without."""


def evidence_lost(
    model: MILModel, bag: Bag, evidence: Evidence, device: torch.device, passes: int = MOST_PASSES
) -> tuple[Tensor, int]:
    """N: the evidence of the bag minus that without this tile; and how many tiles were left out together.

    Up to `passes` tiles are left out one by one. In larger bags groups of neighbors are left out, and each tile of a
    group gets an equal share of its effect.
    """

    def evidence_of(tiles: Bag) -> float:
        return float(evidence(infer(model, model.prepare(tiles), device).logits[None].double()))

    whole = evidence_of(bag)
    groups = _groups(bag, passes)
    lost = torch.empty(len(bag), dtype=torch.float64)
    for group in groups:
        kept = torch.ones(len(bag), dtype=torch.bool)
        kept[group] = False
        lost[group] = (whole - evidence_of(bag.subset(kept.nonzero().flatten()))) / len(group)
        made_progress()
    return lost, max(len(group) for group in groups)


def gradient(model: MILModel, bag: Bag, evidence: Evidence, device: torch.device) -> Tensor:
    """N x D: the derivative of the evidence by the features."""
    if device.type == "cpu" and len(bag) > ESTIMATED_FROM_TILES:
        _refuse_too_large(model, bag)
    prepared = model.prepare(bag).to(device)
    dtype = next(model.parameters()).dtype
    features = prepared.features.detach().to(dtype).clone().requires_grad_()
    with torch.enable_grad():
        logits = model(replace(prepared, features=features)).logits
        value = evidence(logits[None]).sum()
    if not value.requires_grad:
        raise AsmilError(f"{bag.id}: {type(model).__name__} has no gradient with respect to its tiles")
    (derivative,) = torch.autograd.grad(value, features, allow_unused=True)
    return torch.zeros_like(features) if derivative is None else derivative


def _groups(bag: Bag, passes: int) -> list[Tensor]:
    """Tiles that are left out together: single tiles, or neighbors along a space-filling curve."""
    n_tiles = len(bag)
    if n_tiles <= passes:
        return list(torch.arange(n_tiles).split(1))
    order = np.arange(n_tiles) if bag.places is None else _along_curve(bag.places.numpy())
    return list(torch.from_numpy(order.copy()).tensor_split(passes))


def _along_curve(coords: np.ndarray) -> np.ndarray:
    """The tiles in the order of their Morton codes: neighbors in the order are close on the slide."""
    extent = np.ptp(coords, axis=0).max() or 1
    scaled = ((coords - coords.min(axis=0)) / extent * 65535).astype(np.uint64)
    codes = np.zeros(len(coords), dtype=np.uint64)
    for bit in range(16):
        for axis in (0, 1):
            bits = (scaled[:, axis] >> np.uint64(bit)) & np.uint64(1)
            codes |= bits << np.uint64(2 * bit + axis)
    return np.argsort(codes, kind="stable")


def _refuse_too_large(model: MILModel, bag: Bag) -> None:
    needed, free = GRADIENT_MEMORY * bytes_needed(model, bag), available_bytes()
    if needed > free:
        raise AsmilError(
            f"{bag.id}: gradients of {type(model).__name__} need about {needed / 1e9:.1f} GB for {len(bag)} tiles, "
            f"{free / 1e9:.1f} GB are free; ask for the kind 'attention', or use a machine with more memory"
        )
