"""PSMIL: besides the common answers, the tiles' probabilities and the prototypes after a training step."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.psmil import PSMIL
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """A training pass comes first: it is what starts prototypes that have not been started."""
    assert isinstance(model, PSMIL)
    bag = problem.bag()
    trained = model.train()(bag)
    output = model.eval()(bag)
    answers = common(problem, model, bag, output)
    assert output.instance_logits is not None
    answers["instance_probs"] = torch.softmax(output.instance_logits, dim=1)
    label = int(problem.config.get("label", -1))
    if label >= 0:
        target = torch.tensor([label])
        answers["loss"] = model.loss([output], target, task_of(model)).total
        model.after_step(bag, trained, target)
    answers["prototypes_after"] = model.prototypes
    return answers
