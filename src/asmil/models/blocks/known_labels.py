"""The classes of the bags of a step as Python numbers, for losses that treat bags of different classes differently.

Reading them from a GPU waits for it, and is impossible while a CUDA graph is recorded; the code that records one
knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_known: ContextVar[list[int] | None] = ContextVar("known labels", default=None)


@contextmanager
def labels_known(labels: Sequence[int]) -> Iterator[None]:
    """A block in which the bags of the step have these classes."""
    token = _known.set(list(labels))
    try:
        yield
    finally:
        _known.reset(token)


def label_numbers(classes: Tensor) -> list[int]:
    """The classes (B) as numbers."""
    known = _known.get()
    return [int(label) for label in classes.tolist()] if known is None else known
