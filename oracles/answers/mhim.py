"""MHIM: besides the common answers, what the teacher masks and the student's pass over the rest, in eval mode."""

from __future__ import annotations

import torch

from asmil import MILModel
from asmil.models.mhim import MHIM
from asmil.models.mhim_maskable import TransformerEncoder, largest_probability
from asmil.models.mhim_masking import cosine
from oracles.answers.common import Answers, common, task_of
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Teacher and student share the drawn weights; nothing is left to chance in eval mode with r = 0 and s = 1."""
    assert isinstance(model, MHIM)
    bag = problem.bag()
    answers = common(problem, model, bag)
    encoder = model.network.encoder
    if isinstance(encoder, TransformerEncoder):
        rows = encoder.class_rows(model.embed(bag.features))
        answers |= {f"layer{i}_class_attention": row for i, row in enumerate(rows, start=1)}
    _, ranking = model.teach(bag)
    mask = model.mask(ranking)
    student = model.forward_masked(bag)
    answers |= {
        "low_ids": mask.low,
        "high_ids": mask.high,
        "kept_ids": mask.kept,
        "masked_ids": mask.masked,
        "teacher_score": ranking if model.config.version == 1 else largest_probability(ranking, model.n_outputs),
        "teacher_bag_feature": student.extras["teacher_feature"],
        "student_logits": student.logits.unsqueeze(0),
        "student_bag_feature": student.embedding,
    }
    tokens = student.extras.get("merged_tokens", torch.zeros(0))
    answers |= {"merged_tokens": tokens, "student_tokens": torch.tensor([len(mask.kept) + len(tokens)])}
    if "label" in problem.config:
        task = task_of(model)
        loss = model.loss([student], torch.tensor([problem.config["label"]]), task)
        answers["total_loss"] = loss.total
        answers["classification_loss"] = loss.parts[task.loss_name]
        if "consistency" in loss.parts:
            answers["consistency_loss"] = loss.parts["consistency"]
    return answers


def _schedules(problem: Problem) -> Answers:
    """The high ratio and the teacher's momentum at every iteration."""
    config = problem.config
    steps = int(config["epochs"]) * int(config["iterations_per_epoch"])
    ends = {
        "mask_ratio_h": (config.get("mask_ratio_h", 0.0), config.get("mask_ratio_h_final", 0.0)),
        "teacher_momentum": (config.get("mm", 0.9999), config.get("mm_final", 1.0)),
    }
    return {
        name: torch.tensor([cosine(start, end, step, steps) for step in range(steps)], dtype=torch.float64)
        for name, (start, end) in ends.items()
    }


RULES = {"mhim": _schedules}
