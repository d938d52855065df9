"""Tiles of several slides in common batches, so that the encoder never waits for the end of a slide."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asmil.engine.jobs import WorkerBroken
from asmil.errors import AsmilError
from asmil.tables.arrays import Floats32, Integers

Tiles = NDArray[np.uint8]
Rows = Integers
Encode = Callable[[Tensor], Tensor]
FeatureType = Literal["float16", "float32"]

CPU_BATCH, GPU_BATCH = 16, 256
QUEUED_BATCHES = 3
BATCHES_AHEAD = 2


class EncoderFailed(WorkerBroken):
    """The encoder can no longer be used (for example after a GPU failed), nor can its process."""


class Feed:
    """The tiles of one slide on their way through the encoder, see `Batcher.feed`; one thread fills it."""

    def __init__(self, batcher: Batcher, n_tiles: int, dtype: FeatureType) -> None:
        self._batcher = batcher
        self._features: NDArray[np.floating] = np.empty((n_tiles, batcher.width), dtype)
        self._missing = 0

    def add(self, tiles: Tiles, rows: Rows) -> None:
        """Add tiles (n x p x p x 3) and their rows in the result; waits while the encoder has enough to do."""
        batcher = self._batcher
        room = QUEUED_BATCHES * batcher._batch_size
        with batcher._changed:
            batcher._changed.wait_for(lambda: batcher._error is not None or batcher._waiting_tiles < room)
            batcher._raise_error()
            self._missing += len(rows)
            batcher._parts.append(_Part(self, tiles, rows))
            batcher._waiting_tiles += len(rows)
            batcher._changed.notify_all()

    def features(self) -> NDArray[np.floating]:
        """All features, once every added tile is encoded; rows that were never added are undefined."""
        batcher = self._batcher
        with batcher._changed:
            batcher._filling.discard(self)
            batcher._changed.notify_all()
            batcher._changed.wait_for(lambda: batcher._error is not None or self._missing == 0)
            batcher._raise_error()
        return self._features


@dataclass(frozen=True)
class _Part:
    feed: Feed
    tiles: Tiles
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> _Part:
        return _Part(self.feed, self.tiles[part], self.rows[part])


class Batcher:
    """One encoder, fed by several slides at once.

    A batch is encoded when it is full, or when no slide will add another tile to it. The thread that feeds the
    encoder is its only user. An error in the encoder reaches every slide that is waiting for it.

    on_encoded: called with the number of encoded tiles after each batch
    """

    def __init__(
        self,
        encode: Encode,
        width: int,
        device: torch.device,
        batch_size: int,
        on_encoded: Callable[[int], None] = lambda n_tiles: None,
    ) -> None:
        self.width = width
        self._on_encoded = on_encoded
        self._encode = encode
        self._batch_size = batch_size
        self._lane = _CudaLane(device, batch_size) if device.type == "cuda" else _PlainLane()
        self._parts: deque[_Part] = deque()
        self._waiting_tiles = 0
        self._filling: set[Feed] = set()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="asmil-encoder", daemon=True)
        self._thread.start()

    @contextmanager
    def feed(self, n_tiles: int, dtype: FeatureType = "float32") -> Iterator[Feed]:
        """Take the tiles of one more slide, whose features are kept in this type, until the block ends."""
        feed = Feed(self, n_tiles, dtype)
        with self._changed:
            self._filling.add(feed)
        try:
            yield feed
        finally:  # the tiles of a slide that was interrupted are dropped
            with self._changed:
                self._filling.discard(feed)
                kept = [part for part in self._parts if part.feed is not feed]
                self._waiting_tiles -= sum(map(len, self._parts)) - sum(map(len, kept))
                self._parts = deque(kept)
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread; tiles that are not encoded yet are lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _raise_error(self) -> None:
        if isinstance(self._error, AsmilError):
            raise AsmilError(str(self._error))
        if self._error is not None:
            raise EncoderFailed(f"the encoder failed ({type(self._error).__name__}: {self._error})") from self._error

    def _work(self) -> None:
        running: deque[tuple[list[_Part], Callable[[], Floats32]]] = deque()
        try:
            while True:
                batch = self._next_batch(block=not running)
                if batch:
                    running.append((batch, self._lane.start(self._encode, [part.tiles for part in batch])))
                if running and (not batch or len(running) >= BATCHES_AHEAD):
                    self._deliver(*running.popleft())
                elif not batch:
                    return
        except BaseException as error:  # noqa: BLE001 - passed on to every waiting slide
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next_batch(self, block: bool) -> list[_Part]:
        """Parts of at most a batch; empty if nothing can start now. block: wait, until the batcher is closed."""
        with self._changed:
            if block:
                self._changed.wait_for(lambda: self._closed or self._is_ready())
            if self._closed or not self._is_ready():
                return []
            batch, room = [], self._batch_size
            while self._parts and room:
                part = self._parts.popleft()
                if len(part) > room:
                    self._parts.appendleft(part[room:])
                    part = part[:room]
                batch.append(part)
                room -= len(part)
            self._waiting_tiles -= self._batch_size - room
            self._changed.notify_all()
            return batch

    def _is_ready(self) -> bool:
        return self._waiting_tiles >= self._batch_size or (self._waiting_tiles > 0 and not self._filling)

    def _deliver(self, batch: list[_Part], result: Callable[[], Floats32]) -> None:
        features = result()
        done = 0
        with np.errstate(over="ignore"):  # values too large for float16 are reported when the file is written
            for part in batch:
                part.feed._features[part.rows] = features[done : done + len(part)]
                done += len(part)
        with self._changed:
            for part in batch:
                part.feed._missing -= len(part)
            self._changed.notify_all()
        self._on_encoded(done)


class _PlainLane:
    """Encodes at once, on the CPU."""

    def start(self, encode: Encode, parts: list[Tiles]) -> Callable[[], Floats32]:
        tiles = parts[0] if len(parts) == 1 else np.concatenate(parts)
        features: Floats32 = encode(torch.from_numpy(np.ascontiguousarray(tiles))).numpy()
        return lambda: features


class _CudaLane:
    """Copies tiles to a GPU asynchronously, from pinned memory, while the previous batch is encoded."""

    def __init__(self, device: torch.device, batch_size: int) -> None:
        self._device = device
        self._batch_size = batch_size
        self._staging: list[Tensor | None] = [None] * (BATCHES_AHEAD + 1)
        self._turn = 0

    def start(self, encode: Encode, parts: list[Tiles]) -> Callable[[], Floats32]:
        self._turn = (self._turn + 1) % len(self._staging)
        n_tiles, shape = sum(map(len, parts)), parts[0].shape[1:]
        staged = self._staging[self._turn]
        if staged is None or staged.shape[1:] != shape:
            staged = torch.empty((self._batch_size, *shape), dtype=torch.uint8, pin_memory=True)
            self._staging[self._turn] = staged
        np.concatenate(parts, out=staged.numpy()[:n_tiles])
        with torch.cuda.device(self._device):
            features = _encode_in_memory(encode, staged[:n_tiles].to(self._device, non_blocking=True))
            arrived = torch.empty(features.shape, dtype=torch.float32, pin_memory=True)
            arrived.copy_(features, non_blocking=True)
            done = torch.cuda.Event()
            done.record()

        def result() -> Floats32:
            done.synchronize()
            return arrived.numpy()

        return result


def _encode_in_memory(encode: Encode, tiles: Tensor) -> Tensor:
    """Encode the tiles, in halves (recursively) if the GPU has too little memory for all at once."""
    try:
        return encode(tiles)
    except torch.cuda.OutOfMemoryError:
        if len(tiles) == 1:
            raise
    torch.cuda.empty_cache()
    half = len(tiles) // 2
    return torch.cat([_encode_in_memory(encode, tiles[:half]), _encode_in_memory(encode, tiles[half:])])
