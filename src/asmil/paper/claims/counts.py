"""Claims about cost, decided by counting operations, parameters and bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from asmil.attention.anchor import Anchor
from asmil.attention.normalizers import NSF, Entmax
from asmil.paper.claims.ruling import Ruling, ruled
from asmil.paper.counted import cost_bag, cost_model, multiply_adds, step_milliseconds

_ruled = partial(ruled, "count")
PLUG_INS = ("abmil", "clam_sb", "transmil", "dsmil", "asmil")


def temporal_memory() -> Ruling:
    """Storing averages of attention costs memory proportional to slides times tiles."""
    slides, tiles = 547, 5000
    megabytes = 4 * slides * tiles / 1e6
    return _ruled(
        True, f"4 bytes per slide, tile and row: {slides} slides x {tiles} tiles = {megabytes:.0f} MB for one row"
    )


def no_inference_cost() -> Ruling:
    """The anchor costs nothing at inference."""
    differing = []
    for method in PLUG_INS:
        model, bag = cost_model(method), cost_bag()
        before = (multiply_adds(model, bag), sum(parameter.numel() for parameter in model.parameters()))
        anchor = Anchor(model)
        anchor.attend(model.prepare(bag))
        if (multiply_adds(model, bag), sum(parameter.numel() for parameter in model.parameters())) != before:
            differing.append(method)
    return _ruled(not differing, f"operations and parameters are the same for {', '.join(PLUG_INS)}")


def cheaper_than_transmil() -> Ruling:
    """ASMIL's inference needs fewer operations than TransMIL's."""
    mine, theirs = (multiply_adds(cost_model(method), cost_bag()) for method in ("asmil", "transmil"))
    return _ruled(mine < theirs, f"asmil {mine:.0f} M, transmil {theirs:.0f} M multiply-adds at 2,000 tiles")


def mhim_memory() -> Ruling:
    """ASMIL needs a quarter (at most 0.4) of MHIM's training memory: bytes that a step keeps for its backward pass."""
    mine, theirs = (_kept_bytes(method) / 1e6 for method in ("asmil", "mhim"))
    return _ruled(mine <= 0.4 * theirs, f"a step keeps {mine:.1f} MB (asmil) and {theirs:.1f} MB (mhim) at 2,000 tiles")


def entmax_slower() -> Ruling:
    """Entmax by bisection (alpha 1.25) makes a training step of ASMIL a fifth longer or more, on this machine."""
    slow, fast = (step_milliseconds("asmil", True, 15, normalizer=rule)[0] for rule in (Entmax(1.25), NSF()))
    rise = 100 * (slow / fast - 1)
    return _ruled(rise >= 20, f"a step on 2,000 tiles: {slow:.0f} instead of {fast:.0f} ms here, {rise:+.0f} %")


def _kept_bytes(method: str) -> int:
    """Bytes that the graph of one training step keeps in memory, each storage counted once."""
    model = cost_model(method).train()
    bag = model.prepare(cost_bag())
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(bag)
        torch.nn.functional.cross_entropy(output.logits[None], torch.tensor([1])).backward()
    return sum(kept.values())


WITHOUT_RUNS: dict[str, Callable[[], Ruling]] = {"entmax-slower": entmax_slower}
"""Rules for claims whose trainings were not timed: measured on this machine."""
RULES: dict[str, Callable[[], Ruling]] = {
    "temporal-ensembling-memory": temporal_memory,
    "no-inference-cost": no_inference_cost,
    "cheaper-than-transmil": cheaper_than_transmil,
    "mhim-training-memory": mhim_memory,
}
