"""Additive MIL: besides the common answers, what a tile without attention adds, and one training pass."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.additive_mil import AdditiveMIL
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The common answers; or a training pass with its gradients and statistics, where the file is one."""
    assert isinstance(model, AdditiveMIL)
    if problem.mode == "train":
        return _trained(problem, model)
    return common(problem, model) | {"logits_of_empty_tile": model.empty_tile()}


def _trained(problem: Problem, model: AdditiveMIL) -> Answers:
    output = model.train()(problem.bag())
    assert output.scores is not None
    assert output.instance_logits is not None
    loss = model.loss([output], torch.tensor([int(problem.config["label"])]), task_of(model)).total
    loss.backward()
    answers = {
        "train_logits": output.logits,
        "train_attention_scores": output.scores,
        "train_attention": model.normalizer(output.scores),
        "train_instance_logits": output.instance_logits,
        "train_loss_ce": loss,
    }
    parts = dict(model.named_buffers())
    answers |= {f"after_{name}_{i}": parts[f"scorer.{i}.{name}"] for name in _STATISTICS for i in (1, 4)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, layer in (("score", "scorer.6"), ("classifier_last", "classifier.4")):
        gradient = gradients[f"{layer}.weight"]
        assert gradient is not None
        answers[f"grad_{name}_weight"] = gradient
    return answers


_STATISTICS = ("running_mean", "running_var")
