"""simple_mil: windows and their disagreement, the form without subsets, a training pass, and the reading as risk."""

from __future__ import annotations

import torch

from asmil import MILModel, Output
from asmil.models import official
from asmil.models.simple_mil import SimpleMIL
from asmil.tasks.uncertainty import disagreement, member_variance
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """What the windows give together and each, or a training pass, where the file is one."""
    assert isinstance(model, SimpleMIL)
    if problem.mode == "train":
        return _trained(problem, model)
    if "channel_order" in problem.given:
        model.channel_order.copy_(problem.listed("channel_order"))
    bag = problem.bag()
    output: Output = model(bag)
    assert output.scores is not None
    windows = output.extras["window_logits"]
    starts = model.window_starts
    answers = common(problem, model, bag, output) | {
        "window_scores": output.scores,
        "attention": model.tile_map(output),
        "attention_std": model.tile_map(output, "attention_std"),
        "window_channel_ids": torch.stack([model.channel_order[start : start + model.keep] for start in starts]),
    }
    if model.n_outputs == 1:
        return answers | {
            "risk": output.logits,
            "window_risks": windows,
            "risk_variance": member_variance(windows),
        }
    spread = disagreement(torch.softmax(windows, dim=1))
    plain = official.load(problem.state(), {**problem.config, "no_feature_select": True})
    without: Output = plain(bag)
    return answers | {
        "entropy_of_mean": spread.entropy,
        "window_entropy": spread.member_entropy,
        "mutual_information": spread.mutual_information,
        "probability_variance": spread.variance,
        "plain_logits": without.logits,
        "plain_attention": plain.tile_map(without),
    }


def _trained(problem: Problem, model: SimpleMIL) -> Answers:
    model.train()
    model.hold(torch.argsort(model.channel_order)[problem.listed("train_permutation")])
    output: Output = model(problem.bag())
    assert output.scores is not None
    loss = model.loss([output], torch.tensor([int(problem.config["label"])]), task_of(model)).total
    attention = model.attention
    assert attention.gate is not None
    wanted = {
        "grad_tanh_weight": attention.value.weight,
        "grad_gate_bias": attention.gate.bias,
        "grad_score_weight": attention.weight.weight,
    }
    return {
        "train_logits": output.logits,
        "train_attention": model.normalizer(output.scores),
        "train_bag_feature": output.embedding,
        "train_loss_ce": loss,
        **dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True)),
    }
