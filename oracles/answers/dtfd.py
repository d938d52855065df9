"""DTFD-MIL: both tiers on consecutive pseudo-bags, for every distillation; and what some training steps do."""

from __future__ import annotations

from dataclasses import replace

import torch

from asmil import Bag, MILModel, Output
from asmil.models import official
from asmil.models.dtfd import DTFD, PSEUDO_BAGS, deal
from asmil.runs.config import TrainingConfig
from asmil.training.optimization import build_optimizer, clip_gradients
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Tier 1 (the same for every distillation) and tier 2 of each; or a training, where the file is one."""
    assert isinstance(model, DTFD)
    if problem.mode == "train":
        return _trained(problem, model)
    bag = _in_blocks(problem.bag(), model)
    answers: Answers = {}
    for rule in ("AFS", "MaxS", "MaxMinS"):
        variant = official.load(problem.state(), {**problem.config, "distill": rule})
        output: Output = variant(bag)
        answers |= {
            f"tier2_attention_scores_{rule}": output.extras["tier2_scores"],
            f"tier2_logits_{rule}": output.logits,
            f"slide_prob_{rule}": task_of(model).probabilities(output.logits.unsqueeze(0)),
        }
        if "selected" in output.extras:
            answers[f"selected_{rule}"] = output.extras["selected"]
        if "label" in problem.config:
            loss = variant.loss([output], torch.tensor([problem.config["label"]]), task_of(model))
            answers |= {f"tier2_loss_{rule}": loss.parts["ce"], "tier1_loss": loss.parts["tier1"]}
    output = model(bag)
    assert output.instance_logits is not None
    return (
        common(problem, model, bag, output)
        | answers
        | {
            "tier1_attention_concat": output.extras["tier1_attention"],
            "tier1_bag_features": output.extras["tier1_features"],
            "cam_logits_concat": output.instance_logits,
            "instance_prob_last_class": model.tile_map(output, "probability"),
        }
    )


def _in_blocks(bag: Bag, model: DTFD) -> Bag:
    """The bag with consecutive tiles as pseudo-bags."""
    groups = min(model.config.groups, len(bag))
    return replace(bag, extras={**bag.extras, PSEUDO_BAGS: deal(torch.arange(len(bag)), groups)})


def _trained(problem: Problem, model: DTFD) -> Answers:
    """One step a bag, as the training loop makes it; then the first bag in eval mode."""
    config = problem.config
    settings = TrainingConfig(
        lr=config["lr"],
        weight_decay=config["weight_decay"],
        optimizer=str(config.get("optimizer", "adam")).lower(),
        betas=tuple(config.get("betas", (0.9, 0.999))),
    )
    optimizer = build_optimizer(model, settings)
    model.train()
    tier1, tier2 = [], []
    for key, label in zip(config["bag_keys"], config["labels"], strict=True):
        bag = _in_blocks(problem.bag(key), model)
        optimizer.zero_grad()
        loss = model.loss([model(bag)], torch.tensor([label]), task_of(model))
        loss.total.backward()
        clip_gradients(optimizer, settings.clip_norm)
        optimizer.step()
        tier1.append(loss.parts["tier1"].detach())
        tier2.append(loss.parts["ce"].detach())
    first = _in_blocks(problem.bag(config["bag_keys"][0]), model)
    output: Output = model.eval()(first)
    assert output.scores is not None
    return {
        "tier1_losses": torch.stack(tier1),
        "tier2_losses": torch.stack(tier2),
        "after_tier1_logits": output.extras["tier1_logits"],
        "after_attention_scores": output.scores,
        "after_tier2_logits": output.logits,
    }
