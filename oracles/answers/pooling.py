"""Mean and max pooling: besides the common answers, what is said of every tile."""

from __future__ import annotations

import torch

from asmil import MILModel
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Probabilities of the tiles, and the predicted class."""
    bag = problem.bag()
    output = model(bag)
    assert output.instance_logits is not None
    return common(problem, model, bag, output) | {
        "instance_prob": torch.softmax(output.instance_logits, dim=1),
        "y_hat": output.logits.argmax(),
    }
