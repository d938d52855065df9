"""Slides that stay open while they are looked at, and the encoded tiles that were made for the browser."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from asmil.slides.discovery import SlideFile
from asmil.slides.opening import open_slide
from asmil.viewer.pyramid import TilePyramid

MOST_OPEN = 16
CACHE_BYTES = 128 << 20


class _Opened:
    """An open slide, and how many requests read from it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.pyramid: TilePyramid | None = None
        self.users = 0
        self.dropped = False


class OpenSlides:
    """Opens slides when they are first needed and closes those that were not used for longest."""

    def __init__(self, most_open: int = MOST_OPEN, opener: Callable[[SlideFile], TilePyramid] | None = None) -> None:
        self._most_open = most_open
        self._open = opener or (lambda file: TilePyramid(open_slide(file.path, file.mpp)))
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def use(self, file: SlideFile) -> Iterator[TilePyramid]:
        """The open slide, which is not closed within the block."""
        key = str(file.path)
        with self._lock:
            opened = self._opened.setdefault(key, _Opened())
            self._opened.move_to_end(key)
            opened.users += 1
            dropped = [self._opened.popitem(last=False)[1] for _ in range(len(self._opened) - self._most_open)]
            for one in dropped:
                one.dropped = True
            unused = [one for one in dropped if one.users == 0]
        for one in unused:
            _close(one)
        try:
            with opened.lock:
                if opened.pyramid is None:
                    opened.pyramid = self._open(file)
            yield opened.pyramid
        finally:
            with self._lock:
                opened.users -= 1
                last = opened.dropped and opened.users == 0
                if opened.pyramid is None and self._opened.get(key) is opened and opened.users == 0:
                    del self._opened[key]  # it could not be opened; the next request tries again
            if last:
                _close(opened)

    def close(self) -> None:
        """Close every slide that nobody reads."""
        with self._lock:
            everything = list(self._opened.values())
            self._opened.clear()
        for one in everything:
            one.dropped = True
            if one.users == 0:
                _close(one)


def _close(opened: _Opened) -> None:
    if opened.pyramid is not None:
        opened.pyramid.close()
        opened.pyramid = None


class ByteCache:
    """The latest used pieces of bytes, within a number of bytes. Safe from several threads."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        """The bytes of a key, made if they are not there."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += len(made)
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return made
