"""Claims about cost, decided by counting operations, parameters and bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from asmil.attention.anchor import Anchor
from asmil.attention.normalizers import Softmax
from asmil.attention.stabilizer import AttentionStep
from asmil.attention.stabilizers import TemporalEnsemble
from asmil.cohort.bag import Bag
from asmil.paper.claims.ruling import Ruling, ruled
from asmil.paper.counted import TILES, WIDTH, cost_bag, cost_model, multiply_adds
from asmil.paper.printed import printed_table

_ruled = partial(ruled, "count")
PLUG_INS = ("abmil", "clam_sb", "transmil", "dsmil", "asmil")


def temporal_memory() -> Ruling:
    """Stored averages of attention grow in proportion to slides times tiles."""
    one_tile = _stored_bytes(slides=1, tiles=1)
    sizes = ((1, 50), (3, 50), (3, 200))
    proportional = all(_stored_bytes(slides, tiles) == one_tile * slides * tiles for slides, tiles in sizes)
    slides, tiles = 547, 5000
    megabytes = one_tile * slides * tiles / 1e6
    example = f"{megabytes:.0f} MB for one row of scores on {slides} slides of {tiles:,} tiles"
    return _ruled(proportional, f"{one_tile} bytes per slide, tile and row: {example}")


def _stored_bytes(slides: int, tiles: int) -> int:
    """Bytes that temporal ensembling keeps after a visit to every slide, with one row of scores."""
    ensemble = TemporalEnsemble(Softmax())
    for slide in range(slides):
        bag = Bag(torch.zeros(tiles, 1), id=f"slide-{slide}")
        ensemble.penalty(AttentionStep(bag, torch.zeros(1, tiles), torch.zeros(1), Softmax()))
    return sum(average.untyped_storage().nbytes() for average in ensemble.log_averages.values())


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
    """ASMIL's inference needs fewer operations than TransMIL's, in its plain form and in the folded one of asmil."""
    folded, transmil = (multiply_adds(cost_model(method), cost_bag()) for method in ("asmil", "transmil"))
    tokens, inner = cost_model("asmil").get_parameter("tokens").shape
    per_token = 2 * inner**2 + 2 * inner  # key and value projections, scores and pooling of one tile
    plain = TILES * (WIDTH * inner + tokens * per_token) / 1e6
    cheaper = [plain < transmil, folded < transmil]
    printed = {method: printed_table("cost").value("infer_flops", method=method) for method in ("asmil", "transmil")}
    why = (
        f"million multiply-adds at 2,000 tiles: plain asmil {plain:.0f}, folded {folded:.0f}, transmil {transmil:.0f}; "
        f"the paper prints {printed['asmil']:.0f} and {printed['transmil']:.0f}"
    )
    return _ruled(all(cheaper), why) if len(set(cheaper)) == 1 else Ruling("undecided", "count", why)


RULES: dict[str, Callable[[], Ruling]] = {
    "temporal-ensembling-memory": temporal_memory,
    "no-inference-cost": no_inference_cost,
    "cheaper-than-transmil": cheaper_than_transmil,
}
