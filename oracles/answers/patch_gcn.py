"""Patch-GCN: besides the common answers, its graph maps, and what its logits mean as hazards."""

from __future__ import annotations

from typing import Any

from asmil import MILModel
from asmil.models.patch_gcn import PatchGCN
from asmil.tasks.survival_curves import hazards, risk, survival_from_hazards
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """On the listed edges, where the file lists some."""
    assert isinstance(model, PatchGCN)
    given: dict[str, Any] = {"edges": problem.listed("edge_index")} if "edge_index" in problem.given else {}
    bag = model.prepare(problem.bag(**given))
    output = model(bag)
    maps = model.graph_maps(bag)
    survival = survival_from_hazards(output.logits)
    return common(problem, model, bag, output) | {
        "hazards": hazards(output.logits),
        "survival": survival,
        "risk": risk(survival).reshape(1),
        "bag_feature_after_rho": output.embedding,
        "node_embedding_rows_0_1": model.tiles(maps)[:2],
        "genconv0_row0": maps[1][0],
    }
