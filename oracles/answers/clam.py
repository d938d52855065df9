"""CLAM: besides the common answers, its clustering loss for every label; and the smooth SVM alone."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models import official
from asmil.models.blocks.instance_loss import cluster_samples, excludes, is_decisive, smooth_svm
from asmil.models.clam import CLAM
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The terms of the loss with both instance losses, and the clustered tiles with their predictions."""
    assert isinstance(model, CLAM)
    bag = problem.bag()
    output = model(bag)
    answers = common(problem, model, bag, output)
    answers["bag_feature"] = output.embedding.view(-1, model.embedding.width)
    task = task_of(model)
    for label in range(model.n_outputs):
        samples = cluster_samples(output, label, excludes(model.config, model.n_outputs))
        answers[f"instance_targets_label{label}"] = torch.cat([targets for _, targets in samples])
        answers[f"instance_preds_label{label}"] = torch.cat([logits.argmax(dim=1) for logits, _ in samples])
    for kind in ("ce", "svm"):
        same = official.load(problem.state(), {**problem.config, "inst_loss": kind})
        for label in range(model.n_outputs):
            loss = same.loss([output], torch.tensor([label]), task)
            answers[f"bag_loss_label{label}"] = loss.parts["ce"]
            answers[f"instance_loss_{kind}_label{label}"] = loss.parts["cluster"]
            answers[f"total_loss_{kind}_label{label}"] = loss.total
    return answers


def answer_smooth_svm(problem: Problem) -> Answers:
    """The smooth top-1 SVM of drawn scores, with the classes taking turns as targets."""
    config = problem.config
    scores = float(config.get("gain", 1.0)) * problem.bag().features
    targets = torch.arange(len(scores)) % scores.shape[1]
    tau = float(config.get("tau", 1.0))
    losses = smooth_svm(scores, targets, float(config.get("alpha", 1.0)), tau)
    return {
        "scores": scores,
        "targets": targets,
        "loss_per_sample": losses,
        "loss": losses.mean(),
        "is_hard": is_decisive(scores, tau),
    }


RULES = {"clam_smooth_svm": answer_smooth_svm}
