"""The output of a trained model for a bag of any size: in eval mode, in chunks if the bag is large."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from asmil.cohort.bag import Bag
from asmil.errors import AsmilError
from asmil.machine.arithmetic import exact_arithmetic
from asmil.machine.memory import available_bytes
from asmil.models.base import MILModel, Output
from asmil.models.batch import run_batch

CHUNK_TILES = {"cpu": 16_384, "cuda": 131_072}
"""Bags up to this size are processed at once; larger ones are streamed if the method can, with the same result."""

ESTIMATED_FROM_TILES = 65_536
"""For larger bags of methods that cannot be streamed, the memory is checked first."""

SHORT_TILES, BAGS_AT_ONCE = 1024, 64
"""Bags of up to this many tiles are computed together on a GPU, this many at once."""

_SMALLEST_CHUNK = 256


@exact_arithmetic()
@torch.inference_mode()
def infer(
    model: MILModel, bag: Bag, device: torch.device | str | None = None, chunk_tiles: int | None = None
) -> Output:
    """The model's output for a bag, on the CPU; `device` is that of the model (by default that of its parameters).

    The offset of the bag, if it has one, is added to the logits. An output that is not finite is an AsmilError that
    names the bag, since it is no prediction.

    If the device runs out of memory, the bag is tried again in chunks of half the size; if the method cannot be
    streamed, an error states the size of the bag. The system kills a process that exhausts the memory of a CPU, so the
    memory for a large bag is estimated first there.
    """
    _set_to_eval(model)
    device = next(model.parameters()).device if device is None else torch.device(device)
    chunk = chunk_tiles or CHUNK_TILES.get(device.type, CHUNK_TILES["cpu"])
    chunk = chunk if model.can_stream else len(bag)
    if not model.can_stream and device.type == "cpu" and len(bag) > ESTIMATED_FROM_TILES:
        _refuse_too_large(model, bag)
    while True:
        try:
            output = model.with_offset(
                _to_cpu(_run(model, bag, device, chunk)), None if bag.offset is None else bag.offset.cpu()
            )
            return _finite(bag, output)
        except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
            if not isinstance(error, torch.cuda.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            if not model.can_stream or chunk <= _SMALLEST_CHUNK:
                raise AsmilError(
                    f"{bag.id}: a bag of {len(bag)} tiles does not fit into the memory of {device}; "
                    "use a device with more memory (such as cpu), or fewer tiles"
                ) from None
            chunk = max(_SMALLEST_CHUNK, min(chunk, len(bag)) // 2)
            if device.type == "cuda":
                torch.cuda.empty_cache()


def infer_all(model: MILModel, bags: Iterable[Bag], device: torch.device) -> Iterator[tuple[Bag, Output]]:
    """Every bag with its output, as `infer` gives it up to rounding; on a GPU, short bags are computed together."""
    fewest = model.batch_from if device.type == "cuda" else None
    together: list[Bag] = []
    for bag in bags:
        if fewest is None or not fewest <= len(bag) <= SHORT_TILES:
            yield from _infer_together(model, together, device)
            yield bag, infer(model, bag, device)
            together = []
            continue
        together.append(bag)
        if len(together) == BAGS_AT_ONCE:
            yield from _infer_together(model, together, device)
            together = []
    yield from _infer_together(model, together, device)


@exact_arithmetic()
@torch.inference_mode()
def _infer_together(model: MILModel, bags: Sequence[Bag], device: torch.device) -> list[tuple[Bag, Output]]:
    if not bags:
        return []
    _set_to_eval(model)
    for bag in bags:
        model.refuse_misfit(bag)
    outputs = run_batch(model, Bag.collate(bags).to(device))
    return [
        (bag, _finite(bag, model.with_offset(_to_cpu(output), None if bag.offset is None else bag.offset.cpu())))
        for bag, output in zip(bags, outputs, strict=True)
    ]


def _set_to_eval(model: MILModel) -> None:
    """`model.eval()`, which for a short bag takes as long as its largest layer, only if it changes something."""
    if any(module.training for module in model.modules()):
        model.eval()


def _run(model: MILModel, bag: Bag, device: torch.device, chunk: int) -> Output:
    if len(bag) <= chunk:
        return model(bag.to(device))
    model.refuse_misfit(bag)
    return model.stream(_Chunks(bag.features, chunk, device))


@dataclass(frozen=True)
class _Chunks:
    """The chunks of a bag, moved to the device when they are read; methods may read them more than once."""

    features: Tensor
    tiles: int
    device: torch.device

    def __iter__(self) -> Iterator[Tensor]:
        for part in self.features.split(self.tiles):
            yield part.to(self.device, non_blocking=True)


def _refuse_too_large(model: MILModel, bag: Bag) -> None:
    model.refuse_misfit(bag)
    needed, available = bytes_needed(model, bag), available_bytes()
    if needed > available:
        raise AsmilError(
            f"{bag.id}: {type(model).__name__} needs about {needed / 1e9:.1f} GB for its {len(bag)} tiles, "
            f"{available / 1e9:.1f} GB are free; use a machine with more memory, extract larger tiles or less tissue, "
            "or use a method that reads a slide in parts, such as asmil or abmil"
        )


def _finite(bag: Bag, output: Output) -> Output:
    """The output; an error if it is not finite, except for scores of minus infinity, which leave a tile out."""
    outputs = {"logits": output.logits, "bag features": output.embedding, "tile logits": output.instance_logits}
    broken = [name for name, values in outputs.items() if values is not None and not bool(values.isfinite().all())]
    if output.scores is not None and bool((output.scores.isnan() | output.scores.isposinf()).any()):
        broken.append("attention scores")
    if broken:
        raise AsmilError(
            f"{bag.id}: the model's {broken[0]} are not finite, so there is no prediction; check the features of this "
            "slide for very large values, and the weights of the model"
        )
    return output


def _to_cpu(output: Output) -> Output:
    if output.logits.device.type == "cpu":
        return output
    values = {field.name: getattr(output, field.name) for field in fields(Output)}
    return Output(**tree_map_only(Tensor, Tensor.cpu, values))


SAMPLES = (1024, 4096)
"""Numbers of tiles that are measured: memory is proportional to the tiles, plus a constant."""

WORKSPACE = 1.25
"""Factor for the memory of kernels, and for gaps in memory."""


@torch.inference_mode()
def bytes_needed(model: MILModel, bag: Bag) -> int:
    """The bytes that a forward pass needs besides the bag itself, measured on two small parts of the bag.

    The model must be in eval mode; the bag must have more tiles than `SAMPLES`.
    """
    fewer, more = (_peak(model, model.prepare(bag.subset(torch.arange(size)))) for size in SAMPLES)
    per_tile = (more - fewer) / (SAMPLES[1] - SAMPLES[0])
    return int(WORKSPACE * (more + per_tile * (len(bag) - SAMPLES[1])))


def _peak(model: MILModel, bag: Bag) -> int:
    with LiveBytes() as live:
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
        """Run an operation of torch and count its results; views share the memory of another tensor."""
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
