"""Damage to a file: bytes that change on the way, and content that a careless or malicious writer puts there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.campaigns import edits

BYTES_SHARE = 0.45
PLACE_SHARE = 0.04
LOST_SHARE = 0.2
MOST_BLOCK = 4096


@dataclass(frozen=True)
class Damage:
    """What was done to a file.

    unfit: a reader that returns other content than before has taken what it must refuse (NaN, a foreign file)
    """

    what: str
    unfit: bool = False


def damage(path: Path, form: str, draw: np.random.Generator) -> Damage:
    """Damage a file in place; the same draws do the same damage.

    form: of the file, which decides what edits of its structure there are
    """
    choice = draw.random()
    if form in edits.FORMS_OF_PARTS and draw.random() < LOST_SHARE:
        path.unlink()
        return Damage("lost", unfit=True)
    if choice < PLACE_SHARE:
        return _replace(path, form, draw)
    if choice < PLACE_SHARE + BYTES_SHARE or form not in edits.OF_FORM:
        return _damage_bytes(path, draw)
    what = edits.OF_FORM[form](path, draw)
    return Damage(what, unfit=what.startswith(edits.UNFIT))


def _damage_bytes(path: Path, draw: np.random.Generator) -> Damage:
    data = bytearray(path.read_bytes())
    change = _pick(_BYTE_CHANGES, draw)
    what = change(data, draw)
    path.write_bytes(bytes(data))
    return Damage(what)


def _flip(data: bytearray, draw: np.random.Generator) -> str:
    places = draw.integers(0, 8 * len(data), int(draw.integers(1, 9)))
    for place in places.tolist():
        data[place // 8] ^= 1 << place % 8
    return f"{len(places)} bits flipped, the first in byte {places[0] // 8}"


def _flip_in_header(data: bytearray, draw: np.random.Generator) -> str:
    place = int(draw.integers(0, 8 * min(512, len(data))))
    data[place // 8] ^= 1 << place % 8
    return f"a bit flipped in byte {place // 8}"


def _truncate(data: bytearray, draw: np.random.Generator) -> str:
    del data[int(draw.integers(0, len(data))) :]
    return f"cut to {len(data)} bytes"


def _fill(data: bytearray, draw: np.random.Generator) -> str:
    start, end = _block(data, draw)
    value = int(draw.choice([0, 0, 0, 0xFF, 0x20]))
    data[start:end] = bytes([value]) * (end - start)
    return f"bytes {start} to {end} filled with {value}"


def _noise(data: bytearray, draw: np.random.Generator) -> str:
    start, end = _block(data, draw)
    data[start:end] = draw.bytes(end - start)
    return f"bytes {start} to {end} replaced by noise"


def _repeat(data: bytearray, draw: np.random.Generator) -> str:
    start, end = _block(data, draw)
    data[end:end] = data[start:end]
    return f"bytes {start} to {end} twice"


def _remove(data: bytearray, draw: np.random.Generator) -> str:
    start, end = _block(data, draw)
    del data[start:end]
    return f"bytes {start} to {end} removed"


def _insert(data: bytearray, draw: np.random.Generator) -> str:
    place = int(draw.integers(0, len(data) + 1))
    data[place:place] = draw.bytes(int(draw.integers(1, 17)))
    return f"bytes inserted at {place}"


def _swap(data: bytearray, draw: np.random.Generator) -> str:
    first, second = sorted(draw.integers(0, len(data), 2).tolist())
    size = int(min(draw.integers(1, 65), second - first, len(data) - second)) or 1
    data[first : first + size], data[second : second + size] = (
        data[second : second + size],
        data[first : first + size],
    )
    return f"{size} bytes at {first} and {second} swapped"


def _append(data: bytearray, draw: np.random.Generator) -> str:
    data.extend(draw.bytes(int(draw.integers(1, 200))))
    return "bytes appended"


_BYTE_CHANGES = (
    (_flip, 5),
    (_flip_in_header, 3),
    (_truncate, 3),
    (_fill, 4),
    (_noise, 2),
    (_repeat, 1),
    (_remove, 2),
    (_insert, 1),
    (_swap, 2),
    (_append, 1),
)


def _replace(path: Path, form: str, draw: np.random.Generator) -> Damage:
    """Something else lies where the file should."""
    options = ["empty", "folder", "dangling link", "link loop", "noise"]
    if form in edits.FORMS_OF_FOLDERS:
        options.append("pipe")  # nobody puts pipes elsewhere; folders of slides are searched, and may hold anything
    chosen = str(draw.choice(options))
    size = path.stat().st_size
    path.unlink()
    if chosen == "folder":
        path.mkdir()
    elif chosen == "dangling link":
        path.symlink_to(path.parent / "missing")
    elif chosen == "link loop":
        path.symlink_to(path)
    elif chosen == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(draw.bytes(size) if chosen == "noise" else b"")
    return Damage(f"replaced by: {chosen}")


def restore(path: Path, pristine: bytes) -> None:
    """Put the file back, whatever took its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif not path.is_file() or path.is_symlink():
        path.unlink(missing_ok=True)
    path.write_bytes(pristine)


def _block(data: bytearray, draw: np.random.Generator) -> tuple[int, int]:
    start = int(draw.integers(0, len(data)))
    longest = max(1, min(MOST_BLOCK, len(data) - start))
    return start, start + int(np.exp(draw.uniform(0, np.log(longest + 1)))) if longest > 1 else start + 1


def _pick(
    options: Sequence[tuple[Callable[[bytearray, np.random.Generator], str], int]], draw: np.random.Generator
) -> Callable[[bytearray, np.random.Generator], str]:
    weights = np.array([weight for _, weight in options], dtype=float)
    return options[int(draw.choice(len(options), p=weights / weights.sum()))][0]
