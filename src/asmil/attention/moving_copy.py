"""A copy of a model that follows it slowly, pruned to what one quantity of the model depends on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asmil.attention.stabilizer import Stabilizer
from asmil.errors import AsmilError

Read = Callable[[Any, Any], Tensor]
When = Literal["step", "epoch", "never"]


class MovingCopy(Stabilizer):
    """`theta' <- m theta' + (1 - m) theta`, for all parameters that `read(model, bag)` reads.

    The first bag shows which parameters they are, and the copies of all others are let go. It is in eval mode, has
    no gradients, moves with `.to()`, and its state dict restores it.

    update: "step" moves the copy at each `update`, "epoch" at each `end_epoch`, "never" keeps it as it started
    """

    def __init__(self, model: nn.Module, read: Read, momentum: float, update: When, name: str) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise AsmilError(f"{name} momentum = {momentum}: it must lie between 0 and 1")
        if update not in ("step", "epoch", "never"):
            raise AsmilError(f"{name} update = {update!r}: choose 'step', 'epoch' or 'never'")
        self.momentum = momentum
        self.update_when = update
        self._read = read
        self.copy = copy.deepcopy(model).eval().requires_grad_(False)
        self._pruned = False
        self._seen: tuple[Any, Tensor] | None = None

    def look(self, bag: Any) -> None:
        """Read the bag already, before the model in training does: then a step needs hardly more memory than without.

        The next `read` of the same bag has it.
        """
        self._seen = (bag, self._find(bag))

    def read(self, bag: Any) -> Tensor:
        """The quantity, as the copy has it for a bag."""
        seen, self._seen = self._seen, None
        return seen[1] if seen is not None and seen[0] is bag else self._find(bag)

    @torch.no_grad()
    def _find(self, bag: Any) -> Tensor:
        if self._pruned:
            return self._read(self.copy, bag)
        with _recorded_reads() as storages:
            found = self._read(self.copy, bag)
        self._keep_only({name for name, tensor in self._tensors() if tensor.untyped_storage().data_ptr() in storages})
        return found

    def update(self, model: nn.Module) -> None:
        """To be called after every optimizer step; moves the copy if it updates by step."""
        if self.update_when == "step":
            self._move_towards(model)

    def end_epoch(self, model: nn.Module) -> None:
        """To be called after every epoch; moves the copy if it updates by epoch."""
        if self.update_when == "epoch":
            self._move_towards(model)

    def train(self, mode: bool = True) -> MovingCopy:
        """The copy stays in eval mode, whatever is asked of it."""
        del mode
        return super().train(False)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Restore a saved copy; what its state does not hold was let go before it was saved."""
        if not self._pruned:
            prefix = "copy."
            self._keep_only({name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)})
        return super().load_state_dict(state_dict, *args, **kwargs)

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
