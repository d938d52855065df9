"""SmABMIL: the common answers on the listed graph, a training pass with spectral normalization, the operator alone.

The operator's numbers are those of the released code, whose approximate form has alpha and 1 - alpha exchanged.
"""

from __future__ import annotations

import torch

from asmil import Bag, MILModel
from asmil.models.blocks.smoothing import GRAPH, smooth, with_graph
from asmil.models.sm_abmil import SmABMIL, SpectralLinear
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def _bag(problem: Problem) -> Bag:
    edges = problem.listed("neighbour_index")
    bag = problem.bag(edges=edges, edge_weights=problem.listed("neighbour_value", torch.float32))
    return with_graph(bag, problem.method, own_edges=True)


def answer(problem: Problem, model: MILModel) -> Answers:
    """The common answers, or those of a training pass and what it leaves behind."""
    assert isinstance(model, SmABMIL)
    bag = _bag(problem)
    if problem.mode != "train":
        return common(problem, model, bag)
    answers = {f"train_{name}": value for name, value in common(problem, model, bag, model.train()(bag)).items()}
    for ours, theirs in ((model.value, "proj1"), (model.weight, "proj2")):
        if isinstance(ours, SpectralLinear):
            answers |= {f"after_{theirs}_u": ours.u, f"after_{theirs}_v": ours.v}
    return answers


def answer_operator(problem: Problem) -> Answers:
    """Every alpha in both forms, and the start of the trainable coefficient c with its gradient."""
    bag = _bag(problem)
    values, matrix = bag.features, bag.extras[GRAPH]
    alphas, steps = problem.config["alphas"], problem.config["steps"]
    answers: Answers = {"degree": torch.bincount(problem.listed("neighbour_index")[0], minlength=len(bag))}
    for alpha in alphas:
        name = f"alpha{alpha}".replace(".", "p")
        answers[f"exact_{name}"] = smooth(values, matrix, torch.tensor(alpha), None)
        for count in steps:
            answers[f"approx_{name}_steps{count}"] = smooth(values, matrix, torch.tensor(1 - alpha), count)
    answers["approx_scalar"] = smooth(values[:, :1], matrix, torch.tensor(1 - alphas[0]), steps[0])
    for form, prefix, suffix in ((steps[0], "", ""), (None, "exact_", "_exact")):
        coefficient = torch.ones((), requires_grad=True)
        alpha = (coefficient if form is None else 1) / (1 + coefficient)
        result = smooth(values, matrix, alpha, form)
        answers[f"{prefix}trainable_start"] = result
        (answers[f"grad_coef_start{suffix}"],) = torch.autograd.grad(result.square().sum(), coefficient)
    return answers


RULES = {"sm_operator": answer_operator}
