"""AEM: the entropy term beside its base's loss."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.aem import AEM
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """`logits` are those of the bag, also where the prediction is the mean of two streams."""
    assert isinstance(model, AEM)
    bag = problem.bag()
    output = model(bag)
    task = task_of(model)
    answers = common(problem, model, bag, output)
    answers["logits"] = answers["bag_logits"] = output.extras.get("bag_logits", output.logits)
    answers["negative_entropy"] = model.negative_entropy(output)
    if "label" in problem.config:
        target = torch.tensor([problem.config["label"]])
        answers["classification_loss"] = model.base.loss([output], target, task).total
        answers["total_loss"] = model.loss([output], target, task).total
    return answers
