"""The loss of methods whose authors train every class separately, with a sigmoid."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from asmil.errors import AsmilError
from asmil.tasks.base import Task

LossKind = Literal["task", "bce"]
"""`task`: the task's own loss. `bce`: binary cross-entropy of every output against the one-hot class."""


def logits_loss(kind: LossKind, logits: Tensor, targets: Tensor, task: Task) -> Tensor:
    """The mean loss over the bags of a step, of the given kind: logits B x C."""
    if kind == "task":
        return task.loss(logits, targets)
    classes = task.class_index(targets)
    if classes is None:
        raise AsmilError("model.loss = bce needs classes, and the task has none; set model.loss=task")
    return multilabel_bce(logits, classes)


def multilabel_bce(logits: Tensor, classes: Tensor) -> Tensor:
    """Binary cross-entropy with logits, mean over bags and outputs: logits B x C, classes B.

    A class index of C or more (the negative class) is the vector of zeros; with one output the class is the target.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    n_outputs = logits.shape[1]
    positive = 1 if n_outputs == 1 else torch.arange(n_outputs, device=logits.device)
    wanted = (classes.unsqueeze(1) == positive).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, wanted)
