"""The moving average of a model, pruned to the parameters that one quantity of the model depends on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asmil.attention.stabilizer import Stabilizer
from asmil.errors import AsmilError

Read = Callable[[Any, Any], Tensor]
UpdateSchedule = Literal["step", "epoch", "never"]

_HALF = (torch.float16, torch.bfloat16)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `DistributedDataParallel`, `DataParallel` and `torch.compile`."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model


class EmaCopy(Stabilizer):
    """`theta' <- m theta' + (1 - m) theta`, for all parameters that `read(model, bag)` reads; see `Anchor`.

    The average of a half-precision parameter is kept in float32 besides the copy that computes, because bfloat16 and
    float16 round an update of 0.1 % away. The state dict contains the float32 average.
    """

    def __init__(self, model: nn.Module, read: Read, momentum: float, update: UpdateSchedule, name: str) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise AsmilError(f"{name} momentum = {momentum}: it must lie between 0 and 1")
        if update not in ("step", "epoch", "never"):
            raise AsmilError(f"{name} update = {update!r}: choose 'step', 'epoch' or 'never'")
        self.momentum = momentum
        self.update_when = update
        self._name = name
        self._read = read
        self.copy = copy.deepcopy(unwrapped(model)).eval().requires_grad_(False)
        self._averages: dict[str, Tensor] = {}
        self._average_in_float32(dict(self.copy.named_parameters()))
        self.register_state_dict_post_hook(_save_averages)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_take_over)  # type: ignore[no-untyped-call]
        self.is_pruned = False  # whether a bag has shown which parameters are read
        self._seen: tuple[Any, Tensor] | None = None

    def prefetch(self, bag: Any) -> None:
        """Compute the next `read` of a bag before the model in training does, so that a step needs less memory."""
        self._seen = (bag, self._compute(bag))

    def read(self, bag: Any) -> Tensor:
        """The quantity of a bag, computed with the copy."""
        seen, self._seen = self._seen, None
        return seen[1] if seen is not None and seen[0] is bag else self._compute(bag)

    @torch.no_grad()
    def _compute(self, bag: Any) -> Tensor:
        if self.is_pruned:
            return self._read(self.copy, bag)
        with _ReadRecorder() as recorder:
            value = self._read(self.copy, bag)
        self._keep_only(
            {name for name, tensor in self._tensors() if tensor.untyped_storage().data_ptr() in recorder.storages}
        )
        return value

    def update(self, model: nn.Module) -> None:
        """To be called after every optimizer step; moves the copy if it updates by step."""
        if self.update_when == "step":
            self._move_towards(model)

    def end_epoch(self, model: nn.Module) -> None:
        """To be called after every epoch; moves the copy if it updates by epoch."""
        if self.update_when == "epoch":
            self._move_towards(model)

    def train(self, mode: bool = True) -> EmaCopy:
        """The copy always stays in eval mode."""
        return super().train(False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> EmaCopy:
        """Move or convert (`.to()`, `.half()`, ...)."""
        exact = dict(self.copy.named_parameters()) | self._averages
        exact = {name: value.detach() for name, value in exact.items()}  # converting replaces a parameter's data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._average_in_float32(exact)
        return self

    @torch.no_grad()
    def _average_in_float32(self, exact: dict[str, Tensor]) -> None:
        """Start the float32 averages of all half-precision parameters at the exact values."""
        self._averages = {
            name: exact[name].to(value.device, torch.float32, copy=True)
            for name, value in self.copy.named_parameters()
            if value.dtype in _HALF
        }

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
                if leaf == "num_batches_tracked":
                    continue  # torch adds it again when a state without it is loaded
                table = module._parameters if leaf in module._parameters else module._buffers
                table[leaf] = None
                self._averages.pop(name, None)
        self.is_pruned = True

    @torch.no_grad()
    def _move_towards(self, model: nn.Module) -> None:
        model = unwrapped(model)
        online = dict(model.named_parameters())
        kept = dict(self.copy.named_parameters())
        missing = next((name for name in kept if name not in online), None)
        if missing is not None:
            raise AsmilError(
                f"{self._name}: the given {type(model).__name__} has no parameter {missing!r}; give `update` the model "
                f"that the {self._name} was built for"
            )
        mine = [self._averages.get(name, value) for name, value in kept.items()]
        theirs = [online[name].detach().to(average.dtype) for name, average in zip(kept, mine, strict=True)]
        if mine:
            torch._foreach_lerp_(mine, theirs, 1.0 - self.momentum)
        for name, average in self._averages.items():
            kept[name].copy_(average)
        online_buffers = dict(model.named_buffers())
        for name, buffer in self.copy.named_buffers():
            buffer.copy_(online_buffers[name])


class WeightAverage(EmaCopy):
    """The average of all weights of a model, which takes their place in evaluation; it is no term of the loss."""

    def __init__(self, model: nn.Module, momentum: float) -> None:
        super().__init__(model, lambda model, bag: bag, momentum, "step", "training.ema")

    @contextmanager
    def in_place_of(self, model: nn.Module) -> Iterator[None]:
        """A block in which the model has the average weights."""
        self._swap(model)
        try:
            yield
        finally:
            self._swap(model)

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        for mine, theirs in zip(self.copy.parameters(), model.parameters(), strict=True):
            held = theirs.clone()
            theirs.copy_(mine)
            mine.copy_(held)


def _save_averages(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    """Put the float32 averages into a state dict, instead of their half-precision copies."""
    assert isinstance(module, EmaCopy)
    for name, average in module._averages.items():
        state_dict[f"{prefix}copy.{name}"] = average


def _take_over(module: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    """Before a state is loaded: drop what had been dropped when it was saved, and take over its averages."""
    assert isinstance(module, EmaCopy)
    start = f"{prefix}copy."
    saved = {name.removeprefix(start): value for name, value in state_dict.items() if name.startswith(start)}
    if not saved:
        return  # saved by a model without such a copy; torch reports the missing names
    if not module.is_pruned:
        module._keep_only(set(saved))
    for name, average in module._averages.items():
        if name in saved and saved[name].shape == average.shape:
            average.copy_(saved[name])


class _ReadRecorder(TorchDispatchMode):
    """Records the storages that any operation inside the block takes as an argument."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self.storages.add(leaf.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))
