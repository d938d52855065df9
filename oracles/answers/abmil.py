"""ABMIL: besides the common answers, training passes of MIL-Lab and of MIL-Dropout, and MIL-Dropout's layer alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asmil import MILModel
from asmil.models.abmil import ABMIL
from asmil.models.blocks.mil_dropout import MILDropout, TileDrop, choose_dropped
from asmil.models.blocks.scoring import ScoreNetwork
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem

CLAMP = 1e-5


def answer(problem: Problem, model: MILModel) -> Answers:
    """The common answers; with MIL-Dropout also those of the training mode, where nothing else is random."""
    assert isinstance(model, ABMIL)
    if "keep_value" in problem.given:
        return _with_given_dropout(problem, model)
    answers = common(problem, model)
    if model.n_outputs == 1:
        # The original clamps its one probability before the logarithm; only there the two losses differ.
        positive = answers["prob"].clamp(CLAMP, 1 - CLAMP)
        answers |= {"loss_label0": -(1 - positive).log(), "loss_label1": -positive.log()}
    return answers | _training(problem, model) if model.config.mil_dropout else answers


class _GivenDropout(nn.Module):
    """Dropout that keeps what the masks say, one mask per call."""

    def __init__(self, p: float, masks: Iterable[Tensor]) -> None:
        super().__init__()
        self.p = p
        self._masks = iter(masks)

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self._masks) / (1 - self.p)


def _with_given_dropout(problem: Problem, model: ABMIL) -> Answers:
    """A training pass of MIL-Lab's form, with the dropout masks of the file and no others, and its gradients."""
    model.embedding.dropout.p = 0.0
    attention = model.attention
    assert isinstance(attention, ScoreNetwork)
    masks = [problem.listed(name, torch.float32) for name in ("keep_value", "keep_gate") if name in problem.given]
    attention.dropout = _GivenDropout(attention.dropout.p, masks)  # type: ignore[assignment]
    output = model.train()(problem.bag())
    assert output.scores is not None
    loss = model.loss([output], torch.tensor([int(problem.config["label"])]), task_of(model)).total
    first = model.embedding.layers[0]
    assert isinstance(first, nn.Linear)
    wanted = {
        "grad_embedding_bias": first.bias,
        "grad_value_weight": attention.value.weight,
        "grad_score_weight": attention.weight.weight,
    }
    return {
        "train_scores": output.scores,
        "train_attention": model.normalizer(output.scores),
        "train_bag_feature": output.embedding,
        "train_logits": output.logits,
        "train_loss_ce": loss,
        **dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True)),
    }


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
