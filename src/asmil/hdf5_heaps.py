"""Damage in the text heaps of an HDF5 file, found before the library meets it.

Texts of variable length, as most tools write their attributes, lie in collections that begin with `GCOL`. A collection
is a row of objects: number (2 bytes), references (2), nothing (4), size (8), then the content, padded to 8 bytes.
Number 0 is the free rest, whose size counts its own 16 bytes. Where a damaged disk left zeros, the library (1.14) meets
a free rest of no size again and again, and never returns. Collections lie among the structures of a file, so only what
is not the content of a dataset is searched.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

SIGNATURE = b"GCOL"
HEADER, OBJECT = 16, 16
MOST_SEARCHED = 64 * 2**20
"""Bytes; a file with more free space than that is searched up to there."""


def has_endless_heap(file: h5py.File) -> bool:
    """Whether reading a text of this file could never end."""
    with Path(file.filename).open("rb") as stream:
        left = MOST_SEARCHED
        for start, end in _structures(file):
            stream.seek(start)
            block = stream.read(min(end - start, left))
            left -= len(block)
            if any(_is_endless(block, at) for at in _signatures(block)):
                return True
            if left <= 0:
                break
    return False


def _signatures(block: bytes) -> Iterator[int]:
    at = block.find(SIGNATURE)
    while at >= 0:
        yield at
        at = block.find(SIGNATURE, at + 1)


def _is_endless(block: bytes, at: int) -> bool:
    """Whether the collection at this place has a free rest without a size."""
    if at + HEADER > len(block):
        return False
    (size,) = struct.unpack_from("<Q", block, at + 8)
    end, place = min(at + size, len(block)), at + HEADER
    while place + OBJECT <= end:
        number, length = struct.unpack_from("<H6xQ", block, place)
        if number == 0 and length == 0:
            return True
        place += length if number == 0 else OBJECT + -(-length // 8) * 8
    return False


def _structures(file: h5py.File) -> Iterator[tuple[int, int]]:
    """The ranges of bytes that hold no values of datasets."""
    contents: list[tuple[int, int]] = []

    def add(_: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset) and not node.is_virtual:
            contents.extend(_contents(node))

    file.visititems(add)
    place = 0
    for start, size in sorted(contents):
        if start > place:
            yield place, start
        place = max(place, start + size)
    total = Path(file.filename).stat().st_size
    if total > place:
        yield place, total


def _contents(data: h5py.Dataset) -> list[tuple[int, int]]:
    """First byte and number of bytes of each piece of a dataset's values."""
    if data.chunks is None:
        start = data.id.get_offset()
        return [] if start is None else [(start, data.id.get_storage_size())]
    found: list[tuple[int, int]] = []

    def add(chunk: Any) -> None:
        if chunk.byte_offset is not None:
            found.append((chunk.byte_offset, chunk.size))

    if data.id.get_num_chunks():
        data.id.chunk_iter(add)
    return found
