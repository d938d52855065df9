"""HDMIL's DMIN: both branches, masks from outside, and the terms of its training without noise."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from asmil import MILModel
from asmil.models.hdmil import HDMIL, distillation_terms
from asmil.models.hdmil_lipn import harden
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem

LOSS_TERMS = re.compile(r"train_loss_terms_no_noise_label(\d+)_ratio([\d.]+)")


def answer(problem: Problem, model: MILModel) -> Answers:
    """What DMIN says in inference, with a mask from outside, and in a training step without noise and dropout."""
    assert isinstance(model, HDMIL)
    bag = problem.bag()
    output = model(bag)
    embedded = model.embed(bag.features)
    scores = model.attend(bag)
    full = output.extras["pooled_full"]
    heads = [head(embedded[:3]) for head in model.cluster_heads]
    tile, c = torch.arange(len(bag)), torch.arange(model.n_outputs).unsqueeze(1)
    outside = ((tile + c) % 3 == 0).to(scores.dtype)
    training = model.distill(embedded, scores, harden(torch.sigmoid(scores)), jointly=True)
    answers = common(problem, model, bag, output) | {
        "attention_full": model.normalizer(scores),
        "logits_external_mask": model.distill(embedded, scores, outside, jointly=False).logits,
        "bag_features_full_first8": full[:, :8],
        "bag_features_full_norm": full.norm(dim=1),
        "instance_logits_rows_0_2": torch.stack(heads),
        "train_select_logits_no_noise": training.logits,
    }
    for name in problem.asked:
        if found := LOSS_TERMS.fullmatch(name):
            bag_loss = model.loss([training], torch.tensor([int(found[1])]), task_of(model)).parts["ce"]
            terms: dict[str, Tensor] = distillation_terms(training, float(found[2]))
            answers[name] = torch.stack([bag_loss, *terms.values(), training.extras["mask_rate"]])
    return answers
