"""Train with recorded steps: the common loop, with features on the device."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from asmil.arithmetic import exact_arithmetic
from asmil.models.base import MILModel
from asmil.models.inference import infer
from asmil.training.graphed.step import Steps
from asmil.training.interruption import stop_requests
from asmil.training.labeled_bags import BagSource, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.recording import Said
from asmil.training.resident import ResidentBags


def fit_graphed(trainer: Trainer, pool: ResidentBags, train: LabeledBags, val: LabeledBags | None) -> None:
    """Train to the end, like `Trainer.fit`."""
    trainer.prepare(val, executor="graphed")
    for part in (train, val):
        if part is not None:
            pool.add(part.bags)
    steps: Steps | None = None
    model: MILModel | None = None
    trainer.evaluator = ResidentEvaluator(trainer, pool)
    try:
        with exact_arithmetic(trainer.progress.threads), stop_requests() as stop:
            for _ in trainer.session(train, val, stop.is_set):
                if steps is None or trainer.model is not model:  # a new stage
                    steps, model = Steps(trainer, pool, train), trainer.model
                _run_epoch(trainer, steps, train)
    finally:
        trainer.evaluator = None


def _run_epoch(trainer: Trainer, steps: Steps, train: LabeledBags) -> None:
    progress, started = trainer.progress, time.monotonic()
    trainer.model.train()
    order = trainer.epoch_order(train)
    trainer.losses = steps.run_epoch(order).double()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    progress.position = len(order)
    progress.step += -(-len(order) // trainer.settings.batch)
    progress.seconds = time.monotonic() - started
    trainer.refuse_divergence(order, train)


class ResidentEvaluator:
    """Evaluates the model in training on bags on the device, in float32."""

    def __init__(self, trainer: Trainer, pool: ResidentBags) -> None:
        self.trainer = trainer
        self.pool = pool

    def logits(self, bags: BagSource) -> Tensor:
        """Logits of all bags of a source, n x C."""
        found = [
            infer(self.trainer.model, self.pool.bag(number), self.pool.device) for number in self.pool.numbers(bags)
        ]
        return torch.stack([output.logits for output in found])

    def said(self, chosen: Sequence[tuple[BagSource, int]]) -> list[Said]:
        """Attention, logits and embedding of single bags, each given as a source and an index."""
        model, pool = self.trainer.model, self.pool
        numbers = [pool.numbers(source)[place] for source, place in chosen]
        return [Said.of(model, infer(model, pool.bag(number), pool.device)) for number in numbers]
