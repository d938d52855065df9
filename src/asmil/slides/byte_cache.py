"""A cache of arrays or bytes with a limit on their total size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

Value = TypeVar("Value", bytes, NDArray[Any])


class ByteCache(Generic[Value]):
    """Drops the least recently used values; the newest is kept even if it is too large on its own. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Hashable, value: Value) -> None:
        with self._lock:
            if key in self._values:
                return
            self._values[key] = value
            self._bytes += _size(value)
            while self._bytes > self._most_bytes and len(self._values) > 1:
                self._bytes -= _size(self._values.popitem(last=False)[1])

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key; it is made, outside of the lock, if it is not in the cache."""
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self._bytes = 0


def _size(value: bytes | NDArray[Any]) -> int:
    return len(value) if isinstance(value, bytes) else value.nbytes
