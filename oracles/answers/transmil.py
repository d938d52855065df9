"""TransMIL: besides the common answers, what the class token reads in both layers."""

from __future__ import annotations

from asmil import MILModel
from asmil.models.transmil import TransMIL
from oracles.answers.common import Answers, common
from oracles.problem import Problem


def answer(problem: Problem, model: MILModel) -> Answers:
    """Exact scores and Nystrom rows of the class token, over all tokens."""
    assert isinstance(model, TransMIL)
    bag = problem.bag()
    answers = common(problem, model, bag)
    for layer, (scores, row) in enumerate(model.class_rows(bag), start=1):
        answers |= {
            f"layer{layer}_cls_scores": scores,
            f"layer{layer}_cls_nystrom_row": row,
            f"layer{layer}_cls_nystrom_row_headmean": row.mean(dim=0),
        }
    return answers
