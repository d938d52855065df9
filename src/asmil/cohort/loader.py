"""Load bags in a given order, prefetched by threads while the model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import psutil
from torch import Tensor

from asmil.cohort.bag import Bag
from asmil.cohort.features import read_bag
from asmil.cohort.manifest import Slide
from asmil.cohort.pack.packing import read_packed, write_pack
from asmil.cohort.pack.reading import Pack
from asmil.cohort.source import bag_bytes
from asmil.cohort.units import Unit, joined_bag
from asmil.engine.jobs import Progress
from asmil.errors import AsmilError, did_you_mean

CacheMode = Literal["auto", "none", "memory", "disk"]
PACK_NAME = "features.pack"
SHARE_OF_RAM = 0.25
EXTRAS_SHARE_OF_RAM = 0.1
"""Share of the free memory for the extras that `prepare` adds to bags that are not cached."""


class BagLoader:
    """Reads the bags of slides or patients, prepares them, and caches them according to `cache`.

    units: slides, or units that may join several slides (of a patient)
    cache: "none" reads the file each time; "memory" keeps prepared bags; "disk" packs the features as float16
        in `cache_folder`; "auto" is "memory" if the files fit in a quarter of the free RAM, else "none"
    prepare: parameter-free work on a bag (neighbors, clusters); the extras it adds are cached if memory allows
    prefetch: number of bags to read ahead; workers: number of threads that read them
    packing: called with (slides done, slides in total) while features are packed
    processes: number of processes on this machine that read the same bags and share its memory
    """

    def __init__(
        self,
        units: Sequence[Slide | Unit],
        cache: CacheMode = "auto",
        cache_folder: Path | str | None = None,
        prepare: Callable[[Bag], Bag] | None = None,
        prefetch: int = 4,
        workers: int = 1,
        packing: Progress | None = None,
        processes: int = 1,
    ) -> None:
        if cache not in get_args(CacheMode):
            raise AsmilError(f"cache '{cache}' is unknown; {did_you_mean(cache, get_args(CacheMode))}")
        self.units = tuple(unit if isinstance(unit, Unit) else Unit.of_slide(unit) for unit in units)
        slides = [slide for unit in self.units for slide in unit.slides]
        self.cache = _fitting(slides, processes) if cache == "auto" else cache
        self._prepare = prepare
        self._prefetch = prefetch
        self._workers = workers
        self._kept: dict[int, Bag] = {}
        self._added: dict[int, dict[str, Any]] = {}
        self._room_for_extras = _room_for_extras()
        self._pack: Pack | None = None
        if self.cache == "disk" and slides:
            if cache_folder is None:
                raise AsmilError("cache 'disk' needs a folder; give cache_folder")
            self._pack = write_pack(slides, Path(cache_folder) / PACK_NAME, packing)

    def __len__(self) -> int:
        return len(self.units)

    def preparing(self, prepare: Callable[[Bag], Bag]) -> BagLoader:
        """A loader of the same bags with a different `prepare`; it does not share this loader's cache."""
        other = copy(self)
        other._prepare, other._kept, other._added = prepare, {}, {}
        other._room_for_extras = _room_for_extras()
        return other

    def bag(self, index: int) -> Bag:
        """The prepared bag of one slide or patient."""
        if index in self._kept:
            return self._kept[index]
        bag = self._prepared(index, self._joined(self.units[index]))
        if self.cache == "memory":
            self._kept[index] = bag
        return bag

    def stream(self, order: Sequence[int]) -> Iterator[Bag]:
        """The bags in exactly this order; closing the iterator ends the threads."""
        if self._prefetch < 1:
            yield from map(self.bag, order)
            return
        pending: deque[Future[Bag] | Bag] = deque()
        readers = ThreadPoolExecutor(self._workers, thread_name_prefix="asmil-bags")
        try:
            for index in order:
                # cached bags need no thread: waking a thread takes longer than the forward pass of a small bag
                kept = self._kept.get(index)
                pending.append(readers.submit(self.bag, index) if kept is None else kept)
                if len(pending) > self._prefetch:
                    yield _arrived(pending.popleft())
            while pending:
                yield _arrived(pending.popleft())
        finally:
            readers.shutdown(wait=True, cancel_futures=True)

    def _prepared(self, index: int, bag: Bag) -> Bag:
        """The bag with the extras of `prepare`; neighbors and clusters are not recomputed in every epoch."""
        if self._prepare is None:
            return bag
        with naming_slide(self.units[index].name, self.units[index].slides[0]):
            if index in self._added:
                return self._prepare(replace(bag, extras={**bag.extras, **self._added[index]}))
            prepared = self._prepare(bag)
        added = {name: value for name, value in prepared.extras.items() if name not in bag.extras}
        size = _bytes(added)
        if added and self.cache != "memory" and size <= self._room_for_extras:
            self._added[index] = added
            self._room_for_extras -= size
        return prepared

    def _joined(self, unit: Unit) -> Bag:
        bags = [self._read(slide) for slide in unit.slides]
        with naming_slide(unit.name, unit.slides[0]):
            return joined_bag(bags, unit.name)

    def _read(self, slide: Slide) -> Bag:
        with naming_slide(slide.slide, slide):
            if self._pack is not None:
                return read_packed(self._pack, slide.slide)
            return read_bag(slide.source, slide.slide, slide.mpp)


@contextmanager
def naming_slide(name: str, slide: Slide) -> Iterator[None]:
    """Add the name of the slide or patient to errors."""
    try:
        yield
    except AsmilError as error:
        if name in str(error):
            raise
        raise AsmilError(f"slide '{name}': {error}") from error
    except Exception as error:
        error.add_note(f"while reading slide '{slide.slide}' ({slide.source})")
        raise


def _room_for_extras() -> int:
    return int(EXTRAS_SHARE_OF_RAM * psutil.virtual_memory().available)


def _bytes(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_bytes(part) for part in value.values())
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _arrived(waiting: Future[Bag] | Bag) -> Bag:
    return waiting.result() if isinstance(waiting, Future) else waiting


def _fitting(slides: Sequence[Slide], processes: int) -> CacheMode:
    """The cache mode for `auto`, from the file sizes, which are close to those of the features; no file is opened."""
    needed = bag_bytes(slide.source for slide in slides)
    return "memory" if needed * processes <= SHARE_OF_RAM * psutil.virtual_memory().available else "none"
