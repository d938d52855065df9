"""How the process treats the memory it has freed."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next bag instead of giving it back to the system.

    Every bag needs the same few large buffers, and fresh pages for them cost time again and again. Meant for commands
    that own their process. Returns whether it could be done (Linux with glibc).
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST // 2) and mallopt(_M_TRIM_THRESHOLD, _LARGEST))
