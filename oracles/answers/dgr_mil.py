"""DGR-MIL: besides the common answers, the maps of all tokens, the encoded rows, and the losses of a training pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from asmil import Bag, MILModel
from asmil.models.blocks.dual_stream import multilabel_bce
from asmil.models.dgr_mil import DGRMIL
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """A file of a training pass has a label; its losses use the centers after the bag has moved them."""
    assert isinstance(model, DGRMIL)
    bag = problem.bag()
    output = model.eval()(bag)
    tiles, lesions = model.project(bag), model.project_lesions()
    encoded = model.encode(tiles)
    attention = torch.cat([model.tile_map(output).unsqueeze(0), output.extras["lesion_attention"]])
    answers = common(problem, model, bag, output) | {
        "prob": torch.sigmoid(output.logits),
        "token_scores_per_head": model.attend(bag),
        "token_attention": attention[0],
        "attention": attention,
        "train_attention": attention,
        "instance_row0": tiles[0],
        "encoded_row0": encoded[0],
        "encoded_last_row": encoded[-1],
        "lesion_encoded": model.encode_tokens(lesions),
        "lesions": lesions,
    }
    for label in range(model.n_outputs):
        answers[f"loss_bce_label{label}"] = multilabel_bce(output.logits.unsqueeze(0), torch.tensor([label]))
    if problem.mode == "train":
        answers |= _training_pass(model, bag, int(problem.config["label"]))
    return answers


def _training_pass(model: DGRMIL, bag: Bag, label: int) -> Answers:
    output = model.train()(bag)
    target = torch.tensor([label])
    loss = model.loss([output], target, task_of(model))
    loss.total.backward()
    model.after_step(bag, output, target)
    directions = functional.normalize(output.extras["lesions"], dim=1)
    return {
        "train_logits": output.logits,
        "bag_loss": loss.parts["bce"],
        "diversity_loss": loss.parts["diversity"],
        "triplet_loss": loss.parts["triplet"],
        "total_loss": loss.total,
        "after_normal_center": model.centers[0],
        "after_positive_center": model.centers[1],
        "lesion_gram": directions @ directions.t(),
        "grad_lesions": _gradient(model.lesions),
        "grad_token": _gradient(model.class_token),
        "grad_projection_weight": _gradient(model.projection[1].weight),
    }


def _gradient(parameter: object) -> Tensor:
    assert isinstance(parameter, Tensor)
    assert parameter.grad is not None
    return parameter.grad
