"""The answers that mean the same for every method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asmil import Bag, MILModel, Output
from asmil.tasks.classification import Classification
from oracles.problem import Problem

Answers = dict[str, Tensor]


def task_of(model: MILModel) -> Classification:
    """Classification with as many classes as the model has outputs; a single output tells two classes apart."""
    names = [str(i) for i in range(max(2, model.n_outputs))]
    return Classification(names, single_output=model.n_outputs == 1)


def common(problem: Problem, model: MILModel, bag: Bag | None = None, output: Output | None = None) -> Answers:
    """Logits, scores, attention, bag feature, probabilities and cross-entropies under all names they go by."""
    bag = problem.bag() if bag is None else bag
    output = model(model.prepare(bag)) if output is None else output
    task = task_of(model)
    logits = output.logits.unsqueeze(0)
    answers: dict[str, Any] = dict.fromkeys(("logits", "logit", "bag_logits", "logits_eval"), logits)
    answers["log_probs"] = torch.log_softmax(logits, dim=-1)
    answers["incidence"] = torch.softmax(logits, dim=-1)
    probabilities = task.probabilities(logits)
    shown = probabilities[:, 1:] if model.n_outputs == 1 else probabilities
    answers |= dict.fromkeys(("prob", "probabilities", "probability"), shown)
    answers |= dict.fromkeys(("bag_feature", "bag_embedding"), output.embedding)
    if output.instance_logits is not None:
        answers["instance_logits"] = output.instance_logits
    if output.scores is not None:
        answers |= dict.fromkeys(("scores", "attention_scores", "pool_scores"), output.scores)
        answers |= dict.fromkeys(("attention", "pool_attention"), model.normalizer(output.scores))
        answers["heatmap"] = model.tile_map(output)
    for label in range(len(task.classes)):
        loss = task.loss(logits, torch.tensor([label]))
        answers |= dict.fromkeys((f"loss_label{label}", f"loss_ce_label{label}", f"loss_y{label}"), loss)
    if "label" in problem.config:
        answers["loss_ce"] = answers[f"loss_ce_label{problem.config['label']}"]
    return answers | output.extras
