"""How the process treats the memory it has freed."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
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
    # One arena for all threads: those beside the first hold 64 MB at most, and what is larger is fresh every time.
    options = {_M_MMAP_THRESHOLD: _LARGEST // 2, _M_TRIM_THRESHOLD: _LARGEST, _M_ARENA_MAX: 1}
    return all(mallopt(option, value) for option, value in options.items())
