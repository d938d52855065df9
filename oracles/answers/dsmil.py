"""DSMIL: both streams, and both kinds of loss."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.blocks.dual_stream import mean_prediction, multilabel_bce, two_stream_loss
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Official losses are binary, one a class; the ASMIL study's are cross-entropies."""
    bag = problem.bag()
    output = model(bag)
    task = task_of(model)
    bag_logits, max_logits = output.extras["bag_logits"], output.extras["max_logits"]
    answers = common(problem, model, bag, output)
    answers["bag_feature"] = output.embedding.view(model.n_outputs, -1)
    answers["prob"] = task.probabilities(mean_prediction(max_logits, bag_logits).unsqueeze(0))
    answers["prob_bag"] = torch.sigmoid(bag_logits)
    answers["prob_sum_average_flag"] = torch.sigmoid(max_logits) + torch.sigmoid(bag_logits)
    for label in range(max(2, model.n_outputs)):
        target = torch.tensor([label])
        answers[f"loss_ce_label{label}"] = two_stream_loss([output], target, task).total
        answers[f"loss_bce_label{label}"] = two_stream_loss([output], target, task, "bce").total
    # A class index beyond the outputs is the negative class, which the task does not know.
    beyond = torch.tensor([max(2, model.n_outputs)])
    both = [multilabel_bce(logits.unsqueeze(0), beyond) for logits in (bag_logits, max_logits)]
    answers[f"loss_bce_label{int(beyond)}"] = torch.stack(both).mean()
    return answers
