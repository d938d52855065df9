"""The anchor: a slowly moving copy of a model's attention path, and the loss that keeps the attention close to it.

    theta' <- m theta' + (1 - m) theta          after every optimizer step, or after every epoch
    L_AS    = KL(normalizer(z') || attention(z))   summed over tiles, averaged over the rows of the scores

z' are the anchor's scores of the same bag, z those of the model in training. In ASMIL the normalizer of the anchor
is the normalized sigmoid and that of the model is softmax.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from asmil.attention import divergences
from asmil.attention.ema import EmaCopy, Read, UpdateSchedule, unwrapped
from asmil.attention.normalizers import Normalizer, Softmax, build_normalizer
from asmil.attention.stabilizer import AttentionStep
from asmil.errors import AsmilError, AsmilWarning

_TILES_TO_TELL_WEIGHTS = 10


class Anchor(EmaCopy):
    """Keeps the attention of a model in training close to that of its moving average.

    >>> import asmil, torch
    >>> model, bag = asmil.build("abmil", in_features=8, n_outputs=2), asmil.Bag(torch.randn(5, 8))
    >>> anchor = Anchor(model)
    >>> output = model(bag)
    >>> total = output.logits.square().sum() + anchor.loss(bag, output.scores)
    >>> total.backward()
    >>> anchor.update(model)                  # after optimizer.step()

    model: any module with `attend(bag) -> scores (A x N)`, or with `scores=callable(model, bag)` any module at all
    momentum: m of the moving average
    normalizer: how the anchor's scores become attention: a name, or a `Normalizer`
    weight: beta, the factor of the loss
    update: "step" moves the anchor at each `update`, "epoch" at each `end_epoch`, "never" keeps it as it started
    divergence: "kl", or "cross_entropy" (same gradient, another value)
    reduction: "sum" over tiles as published, or "mean", which divides by the number of unmasked tiles as well
    both_sides: the online scores are compared under the anchor's normalizer too, not under the model's own
    ramp_epochs: the weight rises over this many epochs, by exp(-5 (1 - e / E)^2) in epoch e, as in Mean Teacher
    ramp_momentum: the momentum during the ramp; default: the same as after it

    The anchor keeps only what the scores depend on: the first bag shows which parameters are read, and the copies of
    all others are dropped. It is in eval mode, has no gradients, moves with `.to()`, and its state dict restores it,
    also as a part of another module's state dict. Averages of half-precision parameters are kept in float32.
    """

    def __init__(
        self,
        model: nn.Module,
        momentum: float = 0.999,
        normalizer: str | Normalizer = "nsf",
        weight: float = 1.0,
        update: UpdateSchedule = "step",
        *,
        divergence: Literal["kl", "cross_entropy"] = "kl",
        reduction: Literal["sum", "mean"] = "sum",
        scores: Read | None = None,
        both_sides: bool = False,
        ramp_epochs: int = 0,
        ramp_momentum: float | None = None,
    ) -> None:
        model = unwrapped(model)
        if scores is None and not callable(getattr(model, "attend", None)):
            raise AsmilError(
                f"{type(model).__name__} has no attend(bag); give the anchor scores=callable(model, bag) instead"
            )
        super().__init__(model, scores or _attend, momentum, update, "anchor")
        self.normalizer = build_normalizer(normalizer) if isinstance(normalizer, str) else normalizer
        if any(True for _ in self.normalizer.parameters()):
            raise AsmilError(
                f"an anchor cannot have the normalizer {type(self.normalizer).__name__}, because an anchor is not "
                "trained; use it in the online model and give the anchor nsf or softmax"
            )
        self.weight = weight
        self.ramp_epochs = ramp_epochs
        self._momenta = (momentum if ramp_momentum is None else ramp_momentum, momentum)
        self._epochs = 0
        if ramp_epochs:
            self.register_buffer("epochs_done", torch.zeros((), dtype=torch.int64))
            self.register_load_state_dict_post_hook(_take_over_epochs)  # type: ignore[no-untyped-call]
        self.divergence = divergence
        self.reduction = reduction
        self._looked_for_weights = False
        # In a tuple, so that the online model's own module is not registered (saved, moved) here.
        online = self.normalizer if both_sides else getattr(model, "normalizer", None)
        self._online_normalizer = (online if isinstance(online, Normalizer) else Softmax(),)
        if self._online_normalizer[0].sparse:
            raise AsmilError(
                f"an anchor cannot stabilize {type(self._online_normalizer[0]).__name__} attention: if a tile has the "
                "weight 0, the divergence is infinite; give the online model softmax, nsf or mixture"
            )

    epochs_done: Tensor

    @property
    def ramp(self) -> float:
        """The factor of the weight: 1 without a ramp or after it."""
        if self._epochs >= self.ramp_epochs:
            return 1.0
        return math.exp(-5.0 * (1.0 - (self._epochs + 1) / self.ramp_epochs) ** 2)

    def update(self, model: nn.Module) -> None:
        """To be called after every optimizer step."""
        self.momentum = self._momenta[self._epochs >= self.ramp_epochs]
        super().update(model)

    def end_epoch(self, model: nn.Module) -> None:
        """To be called after every epoch."""
        self.momentum = self._momenta[self._epochs >= self.ramp_epochs]
        super().end_epoch(model)
        if self.ramp_epochs:
            # a plain number besides the buffer, which is saved: reading a buffer waits for a GPU
            self._epochs += 1
            self.epochs_done += 1

    def attend(self, bag: Any) -> Tensor:
        """The anchor's own scores of a bag, A x N."""
        return self.read(bag)

    def penalty(self, step: AttentionStep) -> Tensor:
        """The loss, from what a training step shows to every stabilizer."""
        return self._loss(step.bag, step.scores, step.rows, None)

    def loss(self, bag: Any, scores: Tensor, rows: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """`weight * L_AS` for the scores that the model in training gave this bag.

        rows: a mask over the rows of the scores; only those enter the average (default: all)
        mask: A x N or N, true (or not 0) for real tiles and false for padding, which enters no sum. A tile with the
            score minus infinity on both sides counts as padding without a mask

        NaN or plus infinity among the unmasked scores of either side make the loss NaN, as does a row without tiles.
        Scores that look like attention weights (softmax already applied) give an `AsmilWarning`, once.
        """
        if scores.ndim != 2:
            raise AsmilError(f"anchor: scores have shape {tuple(scores.shape)}; they must be A x N (rows x tiles)")
        if mask is not None and mask.shape not in (scores.shape, scores.shape[1:]):
            raise AsmilError(
                f"anchor: the mask has shape {tuple(mask.shape)}, the scores {tuple(scores.shape)}; give one value per "
                "tile, A x N or N"
            )
        if not self._looked_for_weights:
            self._warn_of_weights(scores)
        return self._loss(bag, scores, rows, mask)

    def _loss(self, bag: Any, scores: Tensor, rows: Tensor | None, mask: Tensor | None) -> Tensor:
        target_scores = self.attend(bag)
        if target_scores.shape != scores.shape:
            raise AsmilError(
                f"anchor: the model gave scores of shape {tuple(scores.shape)}, the anchor "
                f"{tuple(target_scores.shape)} for the same bag; pass the scores of the unmasked bag"
            )
        if mask is not None:
            padding = (mask == 0).to(scores.device)
            scores, target_scores = (z.masked_fill(padding, -torch.inf) for z in (scores, target_scores))
        per_row = self._per_row(target_scores, scores)
        return self.weight * self.ramp * (per_row.mean() if rows is None else per_row[rows].mean())

    def batch_loss(self, target_scores: Tensor, scores: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mean of `loss` over B bags: both scores B x A x N, minus infinity for padding; rows: B x A."""
        per_row = self._per_row(target_scores.flatten(0, 1), scores.flatten(0, 1)).view(scores.shape[:2])
        if rows is None:
            return self.weight * self.ramp * per_row.mean()
        counted = rows.to(per_row.dtype)
        return self.weight * self.ramp * ((per_row * counted).sum(dim=1) / counted.sum(dim=1)).mean()

    def _per_row(self, target_scores: Tensor, scores: Tensor) -> Tensor:
        """The divergence of every row, from the scores of the anchor and of the model in training."""
        online = self._online_normalizer[0]
        if self.divergence == "kl" and type(online) is Softmax and online.temperature == 1.0:
            per_row = divergences.kl_to_softmax(target_scores, self.normalizer, scores)
        else:
            divergence = divergences.kl if self.divergence == "kl" else divergences.cross_entropy
            with torch.no_grad():
                log_target = self.normalizer.log(target_scores)
            per_row = divergence(log_target, online.log(scores))
        if self.reduction == "mean":
            per_row = per_row / (target_scores != -torch.inf).sum(dim=-1)
        # The sigmoid of an infinite score is finite: times 0 it is NaN, as it is wherever else it enters.
        return per_row + 0.0 * target_scores.amax(dim=-1)

    def _warn_of_weights(self, scores: Tensor) -> None:
        """Check the first bag that is large enough, and only this one, since reading values waits for a GPU."""
        if scores.shape[-1] < _TILES_TO_TELL_WEIGHTS:
            return
        self._looked_for_weights = True
        values = scores.detach().float()
        sums = values.sum(dim=-1)
        # Less than 1 if a model has further tokens (a class token, padding) that take a share.
        if bool(((values >= 0).all(dim=-1) & (sums > 0) & (sums < 1.001)).all()):
            warnings.warn(
                "anchor: no score is negative and no row sums to more than 1, so these look like attention weights; "
                "pass the scores before softmax, otherwise the loss is nearly constant",
                AsmilWarning,
                stacklevel=3,
            )


def _take_over_epochs(module: nn.Module, incompatible_keys: Any) -> None:
    assert isinstance(module, Anchor)
    module._epochs = int(module.epochs_done)


def _attend(model: Any, bag: Any) -> Tensor:
    return model.attend(bag)
