"""The anchor: a slowly moving copy of a model's attention path that the attention is held to.

    theta' <- m theta' + (1 - m) theta          after every optimizer step, or after every epoch
    L_AS    = KL(normalizer(z') || attention(z))   summed over tiles, averaged over the rows of the scores

z' are the anchor's scores of the same bag, z those of the model in training. In ASMIL the normalizer of the anchor
is the normalized sigmoid and that of the model is softmax.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asmil.attention import divergences
from asmil.attention.normalizers import Normalizer, Softmax, build_normalizer
from asmil.errors import AsmilError

Scores = Callable[[Any, Any], Tensor]


class Anchor(nn.Module):
    """Holds the attention of a model in training to that of its moving average.

    >>> anchor = Anchor(model)                                      # doctest: +SKIP
    >>> total = loss.total + anchor.loss(bag, output.scores)        # doctest: +SKIP
    >>> anchor.update(model)                  # after optimizer.step()  # doctest: +SKIP

    model: any module with `attend(bag) -> scores (A x N)`, or with `scores=callable(model, bag)` any module at all
    momentum: m of the moving average
    normalizer: how the anchor's scores become attention: a name, or a `Normalizer`
    weight: beta, the factor of the loss
    update: "step" moves the anchor at each `update`, "epoch" at each `end_epoch`, "never" keeps it as it started
    divergence: "kl", or "cross_entropy" (same gradient, another value)
    reduction: "sum" over tiles as published, or "mean", which divides by the number of tiles as well

    The anchor keeps only what the scores depend on: the first bag shows which parameters `attend` reads, and the
    copies of all others are let go. It is in eval mode, has no gradients, moves with `.to()`, and its state dict
    restores it.
    """

    def __init__(
        self,
        model: nn.Module,
        momentum: float = 0.999,
        normalizer: str | Normalizer = "nsf",
        weight: float = 1.0,
        update: Literal["step", "epoch", "never"] = "step",
        *,
        divergence: Literal["kl", "cross_entropy"] = "kl",
        reduction: Literal["sum", "mean"] = "sum",
        scores: Scores | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise AsmilError(f"anchor momentum = {momentum}: it must lie between 0 and 1")
        if update not in ("step", "epoch", "never"):
            raise AsmilError(f"anchor update = {update!r}: choose 'step', 'epoch' or 'never'")
        if scores is None and not callable(getattr(model, "attend", None)):
            raise AsmilError(
                f"{type(model).__name__} has no attend(bag); give the anchor scores=callable(model, bag) instead"
            )
        self.momentum = momentum
        self.normalizer = build_normalizer(normalizer) if isinstance(normalizer, str) else normalizer
        self.weight = weight
        self.update_when = update
        self.divergence = divergence
        self.reduction = reduction
        self._scores = scores
        # In a tuple, so that the online model's own module is not registered (saved, moved) here.
        online = getattr(model, "normalizer", None)
        self._online_normalizer = (online if isinstance(online, Normalizer) else Softmax(),)
        self.copy = copy.deepcopy(model).eval().requires_grad_(False)
        self._pruned = False

    @torch.no_grad()
    def attend(self, bag: Any) -> Tensor:
        """The anchor's own scores of a bag, A x N."""
        if self._pruned:
            return self._read_scores(bag)
        with _recorded_reads() as storages:
            scores = self._read_scores(bag)
        self._keep_only({name for name, tensor in self._tensors() if tensor.untyped_storage().data_ptr() in storages})
        return scores

    def loss(self, bag: Any, scores: Tensor, rows: Tensor | None = None) -> Tensor:
        """`weight * L_AS` for the scores that the model in training gave this bag.

        rows: a mask over the rows of the scores; only those enter the average (default: all).
        """
        if scores.ndim != 2:
            raise AsmilError(f"anchor: scores have shape {tuple(scores.shape)}; they must be A x N (rows x tiles)")
        target_scores = self.attend(bag)
        if target_scores.shape != scores.shape:
            raise AsmilError(
                f"anchor: the model gave scores of shape {tuple(scores.shape)}, the anchor "
                f"{tuple(target_scores.shape)} for the same bag; pass the scores of the unmasked bag"
            )
        online = self._online_normalizer[0]
        if self.divergence == "kl" and type(online) is Softmax and online.temperature == 1.0:
            per_row = divergences.kl_to_softmax(target_scores, self.normalizer, scores)
        else:
            divergence = divergences.kl if self.divergence == "kl" else divergences.cross_entropy
            per_row = divergence(self.normalizer.log(target_scores), online.log(scores))
        if self.reduction == "mean":
            per_row = per_row / scores.shape[-1]
        return self.weight * (per_row.mean() if rows is None else per_row[rows].mean())

    def update(self, model: nn.Module) -> None:
        """To be called after every optimizer step; moves the anchor if it updates by step."""
        if self.update_when == "step":
            self._move_towards(model)

    def end_epoch(self, model: nn.Module) -> None:
        """To be called after every epoch; moves the anchor if it updates by epoch."""
        if self.update_when == "epoch":
            self._move_towards(model)

    def train(self, mode: bool = True) -> Anchor:
        """The anchor stays in eval mode, whatever is asked of it."""
        del mode
        return super().train(False)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Restore a saved anchor; what its state does not hold was let go before it was saved."""
        if not self._pruned:
            prefix = "copy."
            self._keep_only({name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)})
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _read_scores(self, bag: Any) -> Tensor:
        if self._scores is not None:
            return self._scores(self.copy, bag)
        attend = cast(Callable[[Any], Tensor], self.copy.attend)
        return attend(bag)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.copy.named_parameters()
        yield from self.copy.named_buffers()

    def _keep_only(self, names: set[str]) -> None:
        for name, _ in list(self._tensors()):
            if name not in names:
                owner, _, leaf = name.rpartition(".")
                module = self.copy.get_submodule(owner)
                if leaf in module._non_persistent_buffers_set:
                    continue  # no part of a state, and perhaps read without an operation (its type, its device)
                table = module._parameters if leaf in module._parameters else module._buffers
                table[leaf] = None
        self._pruned = True

    @torch.no_grad()
    def _move_towards(self, model: nn.Module) -> None:
        online = dict(model.named_parameters())
        kept = dict(self.copy.named_parameters())
        mine: list[Tensor] = list(kept.values())
        theirs = [online[name].detach() for name in kept]
        if mine:
            torch._foreach_lerp_(mine, theirs, 1.0 - self.momentum)
        online_buffers = dict(model.named_buffers())
        for name, buffer in self.copy.named_buffers():
            buffer.copy_(online_buffers[name])


class _ReadRecorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self.storages.add(leaf.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))


@contextmanager
def _recorded_reads() -> Iterator[set[int]]:
    """The storages that any operation inside the block takes as an argument."""
    with _ReadRecorder() as recorder:
        yield recorder.storages
