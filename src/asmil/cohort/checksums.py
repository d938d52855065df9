"""Checksums of stored values, to detect changed bits."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def checksum_of(*arrays: NDArray[Any] | None) -> int:
    """The CRC-32 of the concatenated bytes of the arrays; None and empty arrays are skipped."""
    found = 0
    for array in arrays:
        if array is not None and array.size:
            found = zlib.crc32(memoryview(np.ascontiguousarray(array).data).cast("B"), found)
    return found
