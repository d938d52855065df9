"""HDF5 files: new ones, written atomically, and the parts of foreign ones that are safe to read."""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np

from asmil.errors import AsmilError
from asmil.files import DAMAGED, replacing

DAMAGED_HDF5 = (*DAMAGED, SystemError)
# since 2008 the library can store its own structures with checksums, but does so only if it is asked to
CHECKED_STRUCTURES = ("v108", "v108")
LONGEST_FIXED_TEXT = 60_000
CHECKSUM_MARK = b"asmil crc32 "
BLOCK_BYTES = 2**20
SIGNATURE = b"GCOL"
HEADER, OBJECT = 16, 16
MOST_SEARCHED = 64 * 2**20
"""Bytes; a file with more free space than that is searched up to there."""


@contextmanager
def new_hdf5(path: Path | str) -> Iterator[h5py.File]:
    """An HDF5 file to be filled; it is at `path` when the block ends well.

    It is built in memory: a disk that becomes full while the library writes to it crashes the process. Its checksum
    follows its content (`refuse_altered`).
    """
    content = io.BytesIO()
    with h5py.File(content, "w", libver=CHECKED_STRUCTURES) as file:
        yield file
    # the library ignores what follows its own content
    checksum = zlib.crc32(content.getbuffer()).to_bytes(4, "little")
    with replacing(path) as partial, partial.open("wb") as stream:
        stream.write(content.getbuffer())
        stream.write(CHECKSUM_MARK + checksum)


def set_attributes(node: h5py.File | h5py.Group | h5py.Dataset, values: Mapping[str, Any]) -> None:
    """Store attributes; texts have a fixed length, since a damaged heap of other texts makes the library loop."""
    for name, value in values.items():
        if isinstance(value, str) and len(encoded := value.encode()) <= LONGEST_FIXED_TEXT:
            value = np.array(encoded, dtype=h5py.string_dtype("utf-8", max(1, len(encoded))))
        node.attrs[name] = value


def reading_hdf5(path: Path | str) -> h5py.File:
    """An HDF5 file, opened read-only and without locking; OSError if reading its texts would never end."""
    with ExitStack() as closing:
        file = closing.enter_context(h5py.File(path, "r", locking=False))
        if has_endless_heap(file):
            raise OSError("the heap of its texts is damaged")
        closing.pop_all()
        return file


def refuse_altered(path: Path | str) -> None:
    """Raise OSError if the file ends with a checksum of `new_hdf5` that its content does not match."""
    status = Path(path).stat()
    _compare_checksum(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _compare_checksum(path: str, _file: int, size: int, _changed_ns: int) -> None:
    """`refuse_altered`, once per file and process: every map of a run is read from the same file."""
    with Path(path).open("rb") as stream:
        left = max(0, size - len(CHECKSUM_MARK) - 4)
        stream.seek(left)
        mark, stored = stream.read(len(CHECKSUM_MARK)), stream.read()
        if mark != CHECKSUM_MARK:
            return
        stream.seek(0)
        checksum = 0
        while left > 0 and (block := stream.read(min(left, BLOCK_BYTES))):
            checksum, left = zlib.crc32(block, checksum), left - len(block)
    if checksum != int.from_bytes(stored, "little"):
        raise OSError("its content has changed since it was written")


def member(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """The member of a group with this name, or None.

    Links to other files are refused: a feature file from elsewhere could name any file of this machine.
    """
    link = group.get(name, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        _refuse(group, f"'{name}' is a link to another place")
    node = group[name]
    if isinstance(node, h5py.Dataset):
        _refuse_incomplete(node)
    return node


def dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The complete dataset at a path such as `attention/3`; KeyError if there is none."""
    node: h5py.Group | h5py.Dataset | None = file
    for part in name.split("/"):
        node = member(node, part) if isinstance(node, h5py.Group) else None
    if not isinstance(node, h5py.Dataset):
        raise KeyError(f"it has no dataset '{name}'")
    return node


def members(group: h5py.Group) -> Iterator[tuple[str, h5py.Group | h5py.Dataset | None]]:
    """The members of a group by name."""
    for name in group:
        yield name, member(group, name)


def _refuse_incomplete(data: h5py.Dataset) -> None:
    """Refuse datasets whose values are not all in this file: the library reads missing ones as zeros."""
    if data.is_virtual or data.external:
        _refuse(data, f"the values of '{data.name}' are in other files")
    if data.shape is None:
        _refuse(data, f"'{data.name}' holds no array")
    if not math.prod(data.shape):
        return
    if data.chunks is None:
        whole = data.id.get_storage_size() >= math.prod(data.shape) * data.dtype.itemsize
    else:
        parts = math.prod(-(-n // chunk) for n, chunk in zip(data.shape, data.chunks, strict=True))
        whole = data.id.get_num_chunks() >= parts
    if not whole:
        _refuse(data, f"'{data.name}' has shape {data.shape}, but only a part of its values is in the file")


def _refuse(node: h5py.Group | h5py.Dataset, what: str) -> NoReturn:
    raise AsmilError(
        f"{node.file.filename}: {what}; a file must hold all its values itself, so copy it or write it again"
    )


def has_endless_heap(file: h5py.File) -> bool:
    """Whether reading a text of this file could never end.

    Texts of variable length, as most tools write their attributes, are in collections that begin with `GCOL`. A
    collection is a sequence of objects: number (2 bytes), references (2), unused (4), size (8), then the content,
    padded to 8 bytes. Number 0 is the free rest, whose size includes its own 16 bytes. Where a damaged disk left zeros,
    the library (1.14) reads a free rest of size 0 again and again, and never returns. Collections are outside the
    values of datasets, so only the bytes between those are searched.
    """
    with Path(file.filename).open("rb") as stream:
        left = MOST_SEARCHED
        for start, end in _structures(file):
            stream.seek(start)
            block = stream.read(min(end - start, left))
            left -= len(block)
            if any(_is_endless(block, match.start()) for match in re.finditer(SIGNATURE, block)):
                return True
            if left <= 0:
                break
    return False


def _is_endless(block: bytes, at: int) -> bool:
    """Whether the collection at this position has a free rest of size 0."""
    if at + HEADER > len(block):
        return False
    (size,) = struct.unpack_from("<Q", block, at + 8)
    end, position = min(at + size, len(block)), at + HEADER
    while position + OBJECT <= end:
        number, length = struct.unpack_from("<H6xQ", block, position)
        if number == 0 and length == 0:
            return True
        position += length if number == 0 else OBJECT + -(-length // 8) * 8
    return False


def _structures(file: h5py.File) -> Iterator[tuple[int, int]]:
    """The ranges of bytes that hold no values of datasets."""
    contents: list[tuple[int, int]] = []

    def add(_: str, node: h5py.Group | h5py.Dataset) -> None:
        if isinstance(node, h5py.Dataset) and not node.is_virtual:
            contents.extend(_contents(node))

    file.visititems(add)
    position = 0
    for start, size in sorted(contents):
        if start > position:
            yield position, start
        position = max(position, start + size)
    total = Path(file.filename).stat().st_size
    if total > position:
        yield position, total


def _contents(data: h5py.Dataset) -> list[tuple[int, int]]:
    """First byte and number of bytes of each piece of a dataset's values."""
    if data.chunks is None:
        start = data.id.get_offset()
        return [] if start is None else [(start, data.id.get_storage_size())]
    pieces: list[tuple[int, int]] = []

    def add(chunk: Any) -> None:
        if chunk.byte_offset is not None:
            pieces.append((chunk.byte_offset, chunk.size))

    if data.id.get_num_chunks():
        data.id.chunk_iter(add)
    return pieces
