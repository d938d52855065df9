"""The gradients of one step: the method's loss, and the penalties that stabilize attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asmil.attention.anchor import Anchor
from asmil.attention.stabilizer import AttentionStep, Stabilizer
from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.models.base import MILModel, Output
from asmil.models.batch import over_bags, run_padded
from asmil.tasks.base import Task

Parts = dict[str, Tensor]
"""The parts of a loss by name; the total comes first, as `loss`."""


def refuse_single_bags(stabilizers: Mapping[str, Stabilizer]) -> None:
    """Raise if a stabilizer needs bags one by one; the anchor does not."""
    for name, stabilizer in stabilizers.items():
        if not isinstance(stabilizer, Anchor):
            raise AsmilError(
                f"stabilizers.{name} needs bags one by one, but training.batch computes several at once; use "
                "training.accumulate instead"
            )


@dataclass(frozen=True)
class StepGradients:
    """Adds the gradients of bags to the parameters of a model.

    kept_rows: whether only the rows of scores that a method kept in this pass are penalized
    autocast: whether matrix products use bf16
    anchor_share: maximum norm of the anchor's gradient relative to that of the other losses; None: no limit
    """

    model: MILModel
    task: Task
    stabilizers: Mapping[str, Stabilizer]
    kept_rows: bool
    autocast: bool
    anchor_share: float | None = None

    def of_one(self, bag: Bag, target: Tensor, size: int, weight: float = 1.0) -> tuple[Output, Parts]:
        """Add the gradient of one bag of a step of `size` bags, and free its memory immediately.

        weight: multiplies the gradient; the returned parts of the loss do not include it
        """
        output, parts = self.loss_of(bag, target)
        total = parts["loss"]
        if self.anchor_share is not None and "anchor" in parts:
            self._add_capped(weight * (total - parts["anchor"]) / size, weight * parts["anchor"] / size)
        else:
            (weight * total / size).backward()
        return output, parts

    def loss_of(self, bag: Bag, target: Tensor) -> tuple[Output, Parts]:
        """The output and the loss of one bag, with gradients."""
        with self._autocast(bag.features):
            output, penalties = self._forward(bag)
            loss = self.model.loss([output], target, self.task)
            total = sum(penalties.values(), loss.total)
        return output, {"loss": total, **loss.parts, **penalties}

    def of_all(self, bags: Sequence[Bag], targets: Tensor) -> tuple[Output, list[Parts]]:
        """Add the gradient of a step whose loss compares bags; return the last bag's output and all loss parts."""
        with self._autocast(bags[0].features):
            outputs, penalties = zip(*(self._forward(bag) for bag in bags), strict=True)
            loss = self.model.loss(list(outputs), targets, self.task)
            extra = [penalty for of_bag in penalties for penalty in of_bag.values()]
            total = loss.total + torch.stack(extra).sum() / len(bags) if extra else loss.total
        if total.requires_grad:
            total.backward()
        return outputs[-1], [{"loss": total, **loss.parts, **of_bag} for of_bag in penalties]

    def of_padded(
        self, features: Tensor, mask: Tensor, targets: Tensor, share: float = 1.0, offsets: Sequence[Tensor | None] = ()
    ) -> tuple[Output, Parts]:
        """Add the gradient of the mean loss of B bags (B x L x D, masks B x L), which are computed at once.

        share: these bags as a share of the bags of the step
        offsets: of the bags, see `Bag`; none: they have no offsets
        """
        with self._autocast(features):
            before = {name: self._anchor_scores(name, features, mask) for name in self.stabilizers}
            outputs, scores = run_padded(self.model, features, mask)
            if offsets:
                outputs = [self.model.with_offset(*pair) for pair in zip(outputs, offsets, strict=True)]
            loss = self.model.loss(outputs, targets, self.task)
            penalties = {name: self._batch_penalty(name, before[name], scores, outputs) for name in self.stabilizers}
            total = sum(penalties.values(), loss.total)
        (total * share).backward()
        return outputs[-1], {"loss": total, **loss.parts, **penalties}

    @torch.no_grad()
    def _anchor_scores(self, name: str, features: Tensor, mask: Tensor) -> Tensor:
        anchor = self._anchor(name)
        if not anchor.is_pruned:
            anchor.read(Bag(features[0, :1], validated=True))
        scores: Tensor = over_bags(anchor.read, features, mask)
        return scores

    def _batch_penalty(
        self, name: str, target_scores: Tensor, scores: Tensor | None, outputs: Sequence[Output]
    ) -> Tensor:
        assert scores is not None, "methods that support padding return the scores of the whole bag"
        rows = torch.stack([output.extras["kept_rows"] for output in outputs]) if self.kept_rows else None
        return self._anchor(name).batch_loss(target_scores, scores, rows)

    def _anchor(self, name: str) -> Anchor:
        stabilizer = self.stabilizers[name]
        assert isinstance(stabilizer, Anchor), "refuse_single_bags excludes all others"
        return stabilizer

    def _forward(self, bag: Bag) -> tuple[Output, Parts]:
        for stabilizer in self.stabilizers.values():
            stabilizer.prefetch(bag)
        output: Output = self.model.with_offset(self.model(bag), bag.offset)
        if not self.stabilizers:
            return output, {}
        # methods that mask tiles in training do not return the scores of the whole bag: compute them here
        scores = self.model.attend(bag) if output.scores is None else output.scores
        rows = output.extras.get("kept_rows") if self.kept_rows else None
        step = AttentionStep(bag, scores, output.embedding, self.model.normalizer, rows)
        return output, {name: stabilizer.penalty(step) for name, stabilizer in self.stabilizers.items()}

    def _add_capped(self, own: Tensor, anchor: Tensor) -> None:
        """Add both gradients, with the anchor's scaled down to its maximum share.

        Norms are computed over the parameters that the anchor's gradient reaches, those that the scores depend on.
        """
        assert self.anchor_share is not None
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        of_own = torch.autograd.grad(own, parameters, retain_graph=True, allow_unused=True)
        of_anchor = torch.autograd.grad(anchor, parameters, allow_unused=True)
        reached = [pair for pair in zip(of_own, of_anchor, strict=True) if pair[1] is not None]
        if reached:
            limit = self.anchor_share * _norm(pair[0] for pair in reached)
            factor = (limit / _norm(pair[1] for pair in reached).clamp_min(1e-30)).clamp_max(1.0)
        for parameter, mine, pull in zip(parameters, of_own, of_anchor, strict=True):
            parts = [part for part in (mine, None if pull is None else factor * pull) if part is not None]
            if parts:
                added = torch.stack(parts).sum(dim=0)
                parameter.grad = added if parameter.grad is None else parameter.grad + added

    def _autocast(self, features: Tensor) -> torch.autocast:
        return torch.autocast(features.device.type, dtype=torch.bfloat16, enabled=self.autocast)


def _norm(gradients: Iterable[Tensor | None]) -> Tensor:
    """The joint norm of some gradients; a missing gradient counts as 0."""
    norms = [torch.linalg.vector_norm(part.float()) for part in gradients if part is not None] or [torch.zeros(())]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
