"""Read arrays of a zarr store on disk, after its metadata show that this is safe and that every chunk is there.

zarr reads a missing chunk as the fill value, so that an incomplete copy looks like features of zeros, and versions
below 3 can unpickle objects. A chunk that was never written since all its values are the fill value looks the same as a
lost one: it is an error as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asmil.cohort.problems import fail
from asmil.cohort.source import FeatureSource

NUMBERS = re.compile(r"[<>|][fiub]\d+|bool|u?int(8|16|32|64)|float(16|32|64)")
TEXTS = re.compile(r"\|O|[<>|][SU]\d+|string|variable_length_utf8")
TEXT_CODEC = "vlen-utf8"
WRITE_AGAIN = "write it again as an array of numbers or text"
SHARDING = "sharding_indexed"
NO_CHUNK = 2**64 - 1
"""The offset, in the index of a shard, of a chunk that it does not hold."""

Index = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The metadata of an array, of version 2 or 3 of the format.

    chunks: the shape of what one file holds
    key: the path of a chunk's file, by the chunk's index in the grid
    """

    dtype: object
    codecs: Sequence[Mapping[str, Any]]
    shape: Index
    chunks: Index
    key: Callable[[Index], str]


def read_array(group: Any, name: str, source: FeatureSource, text: bool = False) -> NDArray[Any]:
    """All values of an array in a group of a store, which are numbers or text."""
    folder = source.path / group.path / name
    for layout in _layouts(folder):
        if not (TEXTS if text else NUMBERS).fullmatch(str(layout.dtype)):
            what = f"'{name}' contains values of type {layout.dtype}, not {'text' if text else 'numbers'}"
            fail(source, what, WRITE_AGAIN)
        _refuse_missing_chunks(layout, folder, name, source)
    return np.asarray(group[name][()])


def refuse_objects(source: FeatureSource, patterns: Iterable[str]) -> None:
    """Refuse a store if one of the arrays with these paths contains objects, before zarr opens any."""
    for folder in sorted(folder for pattern in patterns for folder in source.path.glob(pattern)):
        for layout in _layouts(folder):
            codecs = [_name(codec) for codec in layout.codecs]
            if "pickle" in codecs or ("|O" in str(layout.dtype) and TEXT_CODEC not in codecs):
                name = folder.relative_to(source.path).as_posix()
                what = f"'{name}' contains objects, which could run code when they are read, so the store is not opened"
                fail(source, what, WRITE_AGAIN)


def _layouts(folder: Path) -> Iterator[Layout]:
    """An array's metadata; if those of both versions are stored, it depends on zarr which of them it reads."""
    for name, parse in ((".zarray", _version_2), ("zarr.json", _version_3)):
        if (path := folder / name).exists():
            metadata = json.loads(path.read_text(encoding="utf-8"))
            if metadata.get("node_type") != "group":
                yield parse(metadata)


def _version_2(metadata: Mapping[str, Any]) -> Layout:
    separator = metadata.get("dimension_separator", ".")
    codecs = [codec for codec in (*(metadata.get("filters") or ()), metadata.get("compressor")) if codec]
    shape, chunks = tuple(metadata["shape"]), tuple(metadata["chunks"])
    return Layout(metadata["dtype"], codecs, shape, chunks, lambda index: separator.join(map(str, index)) or "0")


def _version_3(metadata: Mapping[str, Any]) -> Layout:
    grid, encoding = metadata["chunk_grid"], metadata["chunk_key_encoding"]
    if grid["name"] != "regular":
        raise ValueError(f"chunks in a {grid['name']} grid are not supported")
    start, usual = ((), ".") if encoding["name"] == "v2" else (("c",), "/")
    separator = encoding.get("configuration", {}).get("separator", usual)
    return Layout(
        metadata["data_type"],
        metadata["codecs"],
        tuple(metadata["shape"]),
        tuple(grid["configuration"]["chunk_shape"]),
        lambda index: separator.join((*start, *map(str, index))) or "0",
    )


def _name(codec: Mapping[str, Any]) -> str:
    """The name of a codec: `id` in version 2; `name` in version 3, with its package in front."""
    return str(codec.get("id", codec.get("name"))).rpartition(".")[2].lower()


def _refuse_missing_chunks(layout: Layout, folder: Path, name: str, source: FeatureSource) -> None:
    counts = [math.ceil(size / chunk) for size, chunk in zip(layout.shape, layout.chunks, strict=True)]
    shard = next((codec for codec in layout.codecs if _name(codec) == SHARDING), None)
    if shard is not None and len(layout.codecs) > 1:
        raise ValueError(f"codecs in front of {SHARDING} are not supported")
    for number in range(math.prod(counts)):  # there may be many, so they are not listed
        index = tuple(map(int, np.unravel_index(number, counts)))
        key = layout.key(index)
        path = folder / key
        lost = None
        if not path.is_file():
            lost = f"chunk {key}"
        elif shard is not None and (inner := _missing_in_shard(path, index, layout, shard["configuration"])):
            lost = f"chunk {'.'.join(map(str, inner))} in the shard {key}"
        if lost is not None:
            what = f"{lost} of '{name}' is missing: the copy is incomplete, or it was not written as all values are 0"
            fail(source, what, "copy the store again, or write it again with write_empty_chunks=True")


def _missing_in_shard(path: Path, index: Index, layout: Layout, settings: Mapping[str, Any]) -> Index | None:
    """The index, in the array's grid of chunks, of the first chunk that is missing in a shard."""
    inner = tuple(settings["chunk_shape"])
    per_shard = [outer // side for outer, side in zip(layout.chunks, inner, strict=True)]
    codecs = settings["index_codecs"]
    names = [_name(codec) for codec in codecs]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise ValueError(f"an index of shards with the codecs {names} is not supported")
    order = ">" if codecs[0].get("configuration", {}).get("endian") == "big" else "<"
    entries = 2 * math.prod(per_shard)
    content = path.read_bytes()
    start = 0
    if settings.get("index_location", "end") == "end":
        start = len(content) - 8 * entries - 4 * (len(names) - 1)
        if start < 0:
            raise ValueError(f"the shard {path.name} is truncated")
    offsets = np.frombuffer(content, f"{order}u8", entries, start).reshape(*per_shard, 2)[..., 0]
    for where in np.argwhere(offsets == NO_CHUNK).tolist():
        chunk = tuple(shard * n + step for shard, n, step in zip(index, per_shard, where, strict=True))
        # a shard at the edge of the array has room for chunks beyond it
        if all(step * side < size for step, side, size in zip(chunk, inner, layout.shape, strict=True)):
            return chunk
    return None
