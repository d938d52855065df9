"""ACMIL: branches, losses, the candidates for masking, and a pass with all of them masked."""

from __future__ import annotations

import torch

from asmil import MILModel, Output
from asmil.models import official
from asmil.models.acmil import ACMIL
from asmil.models.blocks.top_tiles import top_tiles
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """The answers in eval mode, and the same names with `masked_` for the pass with masking."""
    assert isinstance(model, ACMIL)
    bag = problem.bag()
    output: Output = model(bag)
    assert output.scores is not None
    attention: torch.Tensor = model.normalizer(output.scores)
    answers = common(problem, model, bag, output) | _read(problem, model, output)
    answers |= {
        "attention": model.tile_map(output),
        "branch_attention": attention,
        "head_attention": attention.unflatten(0, (-1, model.config.branches)).mean(dim=1),
        "topk_ids": top_tiles(output.scores, model.config.mask_top).sort(dim=1).values,
    }
    all_masked = official.load(problem.state(), {**problem.config, "mask_drop": 1.0})
    assert isinstance(all_masked, ACMIL)
    # Only the masking is in training: what dropout would do is random.
    all_masked.masking.train()
    masked = _read(problem, all_masked, all_masked(bag))
    return answers | {f"masked_{name}": value for name, value in masked.items()}


def _read(problem: Problem, model: ACMIL, output: Output) -> Answers:
    answers = {
        "logits": output.logits.unsqueeze(0),
        "bag_feature": output.embedding,
        "branch_logits": output.extras["branch_logits"],
    }
    if "label" in problem.config:
        loss = model.loss([output], torch.tensor([problem.config["label"]]), task_of(model))
        zero = torch.zeros(())
        answers |= {
            "slide_loss": loss.parts["ce"],
            "branch_loss": loss.parts.get("branch", zero),
            "diversity_loss": loss.parts.get("diversity", zero),
            "total_loss": loss.total,
        }
    return answers
