"""Slides that stay open while they are viewed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from asmil.errors import AsmilError
from asmil.machine.memory import available_bytes
from asmil.slides.discovery import SlideFile
from asmil.slides.file_names import is_picture
from asmil.slides.opening import open_slide
from asmil.slides.picture_image import picture_size
from asmil.viewer.content_token import file_state
from asmil.viewer.pyramid import TilePyramid

MOST_OPEN = 16
MOST_HELD_BYTES = 1 << 30
"""Memory of open slides that are pictures; the last opened one is kept even if it is larger."""
MODEST_BYTES, MEMORY_SHARE = 512 << 20, 4
"""A picture, or a part of a file that is decoded at once, may need this many bytes, or this fraction of free memory."""
_opening_picture = Lock()
"""Pictures are decoded one after the other, to limit the memory."""


def open_pyramid(file: SlideFile) -> TilePyramid:
    """Open a slide; one that would need most of the memory is refused."""
    if is_picture(file.path):
        with _opening_picture:
            with suppress(OSError):  # opening it reports why it cannot be read
                width, height = picture_size(file.path) or (0, 0)
                _refuse_large(file, width * height, "the picture")
            return TilePyramid(open_slide(file.path, file.mpp))
    image = open_slide(file.path, file.mpp)
    try:
        largest = max(image.decoded_at_once(level) for level in range(len(image.level_sizes)))
        _refuse_large(file, largest, "a stored piece of the file")
    except AsmilError:
        image.close()
        raise
    return TilePyramid(image)


def _refuse_large(file: SlideFile, pixels: int, what: str) -> None:
    if 3 * pixels > max(MODEST_BYTES, available_bytes() // MEMORY_SHARE):
        raise AsmilError(
            f"{file.path}: {what} has {pixels / 1e6:.0f} megapixels, too many for the free memory; save the "
            "slide as a TIFF with tiles and several levels"
        )


class _Opened:
    """An open slide, and the number of requests that read from it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.pyramid: TilePyramid | None = None
        self.users = 0
        self.dropped = False


class OpenSlides:
    """Opens slides when they are first needed, closes the least recently used, and opens replaced files again."""

    def __init__(self, most_open: int = MOST_OPEN, opener: Callable[[SlideFile], TilePyramid] | None = None) -> None:
        self._most_open = most_open
        self._open = opener or open_pyramid
        self._opened: OrderedDict[object, _Opened] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def use(self, file: SlideFile) -> Iterator[TilePyramid]:
        """The open slide, which is not closed within the block."""
        key = file_state(file.path)
        with self._lock:
            opened = self._opened.setdefault(key, _Opened())
            self._opened.move_to_end(key)
            opened.users += 1
        self._drop()
        try:
            with opened.lock:
                fresh = opened.pyramid is None
                if opened.pyramid is None:
                    opened.pyramid = self._open(file)
            if fresh:
                self._drop()
            yield opened.pyramid
        finally:
            with self._lock:
                opened.users -= 1
                last = opened.dropped and opened.users == 0
                if opened.pyramid is None and self._opened.get(key) is opened and opened.users == 0:
                    del self._opened[key]  # it could not be opened; the next request tries again
            if last:
                _close(opened)

    def _drop(self) -> None:
        """Close the least recently used slides if there are too many, or if they use too much memory."""
        with self._lock:
            dropped = []
            while len(self._opened) > self._most_open or (len(self._opened) > 1 and self._held() > MOST_HELD_BYTES):
                dropped.append(self._opened.popitem(last=False)[1])
                dropped[-1].dropped = True
            unused = [opened for opened in dropped if opened.users == 0]
        for opened in unused:
            _close(opened)

    def _held(self) -> int:
        pyramids = (opened.pyramid for opened in self._opened.values())
        return sum(pyramid.image.held_bytes for pyramid in pyramids if pyramid is not None)

    def close(self) -> None:
        """Close every slide that no request reads."""
        with self._lock:
            everything = list(self._opened.values())
            self._opened.clear()
        for opened in everything:
            opened.dropped = True
            if opened.users == 0:
                _close(opened)


def _close(opened: _Opened) -> None:
    if opened.pyramid is not None:
        opened.pyramid.close()
        opened.pyramid = None
