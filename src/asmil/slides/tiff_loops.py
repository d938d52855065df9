"""TIFF files whose chain of pages comes back to itself, which readers would follow for ever."""

from __future__ import annotations

import struct
from pathlib import Path

from asmil.errors import AsmilError

_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
_BIG = 43


def refuse_looping_pages(path: Path) -> None:
    """Stop if a page of a TIFF is followed by one before it; other damage is left to those who read the pages."""
    if _has_loop(path):
        raise AsmilError(
            f"{path}: the TIFF is damaged: its list of pages has no end; copy the file again from its source"
        )


def _has_loop(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(16)
        order = _BYTE_ORDERS.get(start[:2])
        if order is None or len(start) < 16:
            return False
        (version,) = struct.unpack_from(order + "H", start, 2)
        count_format, offset_format, entry_bytes = ("Q", "Q", 20) if version == _BIG else ("H", "I", 12)
        (offset,) = struct.unpack_from(order + offset_format, start, 8 if version == _BIG else 4)
        size = path.stat().st_size
        seen: set[int] = set()
        while 0 < offset < size:
            if offset in seen:
                return True
            seen.add(offset)
            file.seek(offset)
            counted = file.read(struct.calcsize(count_format))
            if len(counted) < struct.calcsize(count_format):
                return False
            place = offset + len(counted) + struct.unpack(order + count_format, counted)[0] * entry_bytes
            if place >= size:
                return False
            file.seek(place)
            following = file.read(struct.calcsize(offset_format))
            if len(following) < struct.calcsize(offset_format):
                return False
            (offset,) = struct.unpack(order + offset_format, following)
    return False
