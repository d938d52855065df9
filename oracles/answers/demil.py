"""DEMIL: besides the common answers, what DEMIPL adds for candidate labels."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.demil import DEMIL, candidate_probabilities
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Gates, probabilities, and the loss of the target: weights of candidate labels, or a label."""
    assert isinstance(model, DEMIL)
    bag = problem.bag()
    output = model(bag)
    probabilities = torch.softmax(output.logits, dim=-1)
    answers = common(problem, model, bag, output) | {
        "attention_unnormalised": output.extras["attention_unnormalized"],
        "sigmoid_outputs": output.logits,
        "probs": probabilities,
    }
    config = problem.config
    if "target" in config:
        target = torch.tensor([config["target"]], dtype=torch.float32)
        answers["candidate_probs"] = candidate_probabilities(target[0], probabilities)
        answers["loss"] = model.loss([output], target, task_of(model)).total
    elif "label" in config:
        answers["loss"] = model.loss([output], torch.tensor([int(config["label"])]), task_of(model)).total
    return answers
