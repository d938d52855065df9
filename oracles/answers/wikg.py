"""WiKG: besides the common answers, the neighbors, how they are weighed, and the tiles before pooling."""

from __future__ import annotations

from asmil import MILModel
from asmil.models.wikg import WiKG
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Every step of the forward pass."""
    assert isinstance(model, WiKG)
    bag = problem.bag()
    heads, tails = model.heads_and_tails(bag.features)
    neighbors, mixed = model.mixed(heads, tails)
    nodes = model.nodes(heads, mixed.tails)
    return common(problem, model, bag) | {
        "neighbor_ids": neighbors,
        "neighbor_probability": mixed.probabilities,
        "knowledge_scores": mixed.scores,
        "knowledge_attention": mixed.attention,
        "node_rows_0_3": nodes[:3],
        "pooled": model.pool(nodes, model.score(nodes, bag)),
    }
