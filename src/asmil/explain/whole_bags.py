"""Explanations of any method, by running it on whole bags: for methods whose tiles see each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.engine.jobs import made_progress
from asmil.errors import AsmilError
from asmil.machine.memory import available_bytes
from asmil.models.base import MILModel
from asmil.models.inference import ESTIMATED_FROM_TILES, bytes_needed, infer

Evidence = Callable[[Tensor], Tensor]

MOST_PASSES = 400
"""Bags with more tiles leave out groups of neighboring tiles, since every group costs a pass over the bag."""
KEPT_FOR_GRADIENT = 3
"""A pass that keeps its steps for the gradient needs about so many times the memory of one that does not."""


def evidence_lost(
    model: MILModel, bag: Bag, evidence: Evidence, device: torch.device, passes: int = MOST_PASSES
) -> tuple[Tensor, int]:
    """N: what the model says of the bag less what it says without this tile; and how many were left out together.

    Up to `passes` tiles are left out one by one. In larger bags groups of neighbors are, and a tile gets an equal
    share of what its group changed.
    """
    whole = float(evidence(infer(model, model.prepare(bag), device).logits[None].double()))
    groups = _groups(bag, passes)
    found = torch.empty(len(bag), dtype=torch.float64)
    for group in groups:
        kept = torch.ones(len(bag), dtype=torch.bool)
        kept[group] = False
        rest = bag.subset(kept.nonzero().flatten())
        without = float(evidence(infer(model, model.prepare(rest), device).logits[None].double()))
        found[group] = (whole - without) / len(group)
        made_progress()
    return found, max(len(group) for group in groups)


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
    (found,) = torch.autograd.grad(value, features, allow_unused=True)
    return torch.zeros_like(features) if found is None else found


def _groups(bag: Bag, passes: int) -> list[Tensor]:
    """Tiles that are left out together: each alone, or neighbors along a curve that fills the plane."""
    n_tiles = len(bag)
    if n_tiles <= passes:
        return list(torch.arange(n_tiles).split(1))
    order = np.arange(n_tiles) if bag.places is None else _along_curve(bag.places.numpy())
    return list(torch.from_numpy(order.copy()).tensor_split(passes))


def _along_curve(places: np.ndarray) -> np.ndarray:
    """The tiles in the order of their Morton codes: those near in the order are near on the slide."""
    extent = np.ptp(places, axis=0).max() or 1
    scaled = ((places - places.min(axis=0)) / extent * 65535).astype(np.uint64)
    codes = np.zeros(len(places), dtype=np.uint64)
    for bit in range(16):
        for axis in (0, 1):
            bits = (scaled[:, axis] >> np.uint64(bit)) & np.uint64(1)
            codes |= bits << np.uint64(2 * bit + axis)
    return np.argsort(codes, kind="stable")


def _refuse_too_large(model: MILModel, bag: Bag) -> None:
    needed, free = KEPT_FOR_GRADIENT * bytes_needed(model, bag), available_bytes()
    if needed > free:
        raise AsmilError(
            f"{bag.id}: gradients of {type(model).__name__} need about {needed / 1e9:.1f} GB for {len(bag)} tiles, "
            f"{free / 1e9:.1f} GB are free; ask for the kind 'attention', or use a machine with more memory"
        )
