"""IBMIL: the dictionary's attention and the losses; and the clustering that makes the dictionary."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from asmil import MILModel
from asmil.models.blocks.dual_stream import multilabel_bce, two_stream_loss
from asmil.models.ibmil import find_prototypes
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The official losses are binary, one a class; the port's is the cross-entropy of the common answers."""
    bag = problem.bag()
    output = model(bag)
    answers = common(problem, model, bag, output)
    answers["probabilities_sigmoid"] = torch.sigmoid(output.logits)
    if "label" not in problem.config:
        return answers
    target = torch.tensor([problem.config["label"]])
    answers["loss_bce"] = multilabel_bce(output.logits.unsqueeze(0), target)
    if "max_logits" in output.extras:
        loss = two_stream_loss([output], target, task_of(model), "bce")
        answers |= {"bag_loss": loss.parts["bce"], "max_loss": loss.parts["max"], "total_loss": loss.total}
        answers["bag_feature"] = output.embedding.view(model.n_outputs, -1)
    return answers


def dictionary(problem: Problem) -> Answers:
    """Row i is a stretched, noisy unit vector i mod K; prototypes are listed in the order of the unit vectors."""
    clusters = int(problem.config["num_clusters"])
    noise = problem.bag().features
    units = torch.eye(noise.shape[1])[:clusters]
    row = torch.arange(len(noise))
    stretch = (1 + row % 5).unsqueeze(1)
    prototypes = find_prototypes(stretch * (units[row % clusters] + 0.05 * noise), clusters)
    return {"centroids": prototypes[_nearest(units, prototypes)]}


def _nearest(units: Tensor, prototypes: Tensor) -> Tensor:
    """For every unit vector, the prototype that points most its way."""
    return (units @ functional.normalize(prototypes, dim=1).t()).argmax(dim=1)


RULES = {"ibmil": dictionary}
