"""ABMIL: besides the common answers, MIL-Dropout: the training pass of its ABMIL, and the layer alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from asmil import MILModel
from asmil.models.abmil import ABMIL
from asmil.models.blocks.mil_dropout import MILDropout, TileDrop, choose_dropped
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem

CLAMP = 1e-5


def answer(problem: Problem, model: MILModel) -> Answers:
    """The common answers; with MIL-Dropout also those of the training mode, where nothing else is random."""
    assert isinstance(model, ABMIL)
    answers = common(problem, model)
    if model.n_outputs == 1:
        # The original clamps its one probability before the logarithm; only there the two losses differ.
        positive = answers["prob"].clamp(CLAMP, 1 - CLAMP)
        answers |= {"loss_label0": -(1 - positive).log(), "loss_label1": -positive.log()}
    return answers | _training(problem, model) if model.config.mil_dropout else answers


def _training(problem: Problem, model: ABMIL) -> Answers:
    drops: list[TileDrop] = []

    def note(layer: Any, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        drops.append(choose_dropped(inputs[0], layer.top, layer.neighbors))

    hook = model.embedding.mil_dropout.register_forward_hook(note)
    output = model.train()(problem.bag())
    hook.remove()
    model.eval()
    assert output.scores is not None
    answers = {
        "train_logits": output.logits,
        "train_attention_scores": output.scores,
        "train_attention": model.normalizer(output.scores),
        "train_bag_feature": output.embedding,
    }
    answers |= {f"train_dropped_ids_{place}": _dropped(drop) for place, drop in enumerate(drops, start=1)}
    if "label" in problem.config:
        target = torch.tensor([int(problem.config["label"])])
        answers["train_loss_ce"] = model.loss([output], target, task_of(model)).total
    return answers


def _layer(problem: Problem) -> Answers:
    """The layer alone, on the bag after a ReLU."""
    top, neighbors = int(problem.config.get("topk", 3)), int(problem.config.get("kernel", 7))
    features = functional.relu(problem.bag().features)
    drop = choose_dropped(features, top, neighbors)
    return {
        "importance": drop.importance,
        "top_ids": drop.top,
        "dropped_ids": _dropped(drop),
        "mask": drop.mask,
        "scale": drop.scale,
        "output": MILDropout(top, neighbors).train(problem.mode == "train")(features),
    }


def _dropped(drop: TileDrop) -> Tensor:
    return torch.nonzero(drop.mask == 0).flatten()


RULES = {"mil_dropout": _layer}
