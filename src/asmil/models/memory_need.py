"""How much memory a model needs for a bag that it cannot read in chunks, known before it is tried."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asmil.cohort.bag import Bag
from asmil.models.base import MILModel

SAMPLES = (1024, 4096)
"""Tiles that are tried. All methods need memory in proportion to the tiles, beside a part that is always the same."""

WORKSPACE = 1.25
"""Kernels need some more for themselves, and memory is never used without gaps."""


@torch.inference_mode()
def bytes_needed(model: MILModel, bag: Bag) -> int:
    """What a forward pass would need beside the bag itself, by trying two small parts of the bag.

    The model must be in eval mode; the bag must have more tiles than `SAMPLES`.
    """
    fewer, more = (_peak(model, model.prepare(bag.subset(torch.arange(size)))) for size in SAMPLES)
    of_a_tile = (more - fewer) / (SAMPLES[1] - SAMPLES[0])
    return int(WORKSPACE * (more + of_a_tile * (len(bag) - SAMPLES[1])))


def _peak(model: MILModel, bag: Bag) -> int:
    live = LiveBytes()
    with live:
        model(bag)
    return live.peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside the block: those alive now, and the most at any time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch and count what it made; views share the memory of another tensor."""
        existing = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known | existing:
                    self._add(storage)
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
