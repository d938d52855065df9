"""Decoded tiles and strips, the latest used of them, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

import numpy as np
from numpy.typing import NDArray


class SegmentCache:
    """Keeps the latest used arrays; the newest is kept even if it alone is too large. Safe from several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._segments: OrderedDict[Hashable, NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> NDArray[np.uint8] | None:
        """The array of a key, if it is still there."""
        with self._lock:
            segment = self._segments.get(key)
            if segment is not None:
                self._segments.move_to_end(key)
            return segment

    def put(self, key: Hashable, segment: NDArray[np.uint8]) -> None:
        """Add an array and drop those that were not used for longest."""
        with self._lock:
            if key in self._segments:
                return
            self._segments[key] = segment
            self._bytes += segment.nbytes
            while self._bytes > self._most_bytes and len(self._segments) > 1:
                self._bytes -= self._segments.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._segments.clear()
            self._bytes = 0
