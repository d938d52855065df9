"""How much memory is available, and how the process reuses freed memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST = 2**31 - 1
SHARE_OF_GPU = 0.7
"""Share of the free memory of a GPU that trainings may fill; evaluation and libraries need the rest."""
SHARE_OF_TENSORS = 0.9
"""Share of a process's part of a GPU that tensors may fill; the rest is for CUDA itself."""
_sharers = 1
_GROUP_FILES = {
    "memory.max": "memory.current",  # control groups, version 2, then 1
    "memory/memory.limit_in_bytes": "memory/memory.usage_in_bytes",
}


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next bag instead of giving it back to the system.

    Every bag needs the same few large buffers, and fresh pages for them take time. Meant for commands
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


def share_gpus(processes: int, device: str = "cpu") -> None:
    """Let this process plan with its part of a GPU that this many processes share, and on that device keep to it.

    A training that needs more than was planned then fails alone, instead of those beside it.
    """
    global _sharers
    _sharers = processes
    if processes > 1 and device.startswith("cuda"):
        import torch

        torch.cuda.set_per_process_memory_fraction(SHARE_OF_TENSORS / processes, torch.device(device))


def free_gpu_memory() -> None:
    """Give the memory of what nobody refers to any more back to the GPU."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def gpu_part(free: int, used: int, total: int) -> int:
    """The bytes of a GPU that this process may still fill, of its part of the whole GPU.

    free: what no process uses; used: what this one uses
    """
    return max(0, min(free, total // _sharers - used))


def how_many_fit(free: int, bytes_each: int, most: int) -> int:
    """How many trainings run at the same time on a GPU with this much free memory; at least 1."""
    return max(1, min(most, int(SHARE_OF_GPU * free) // bytes_each))


def available_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory that can still be used: of the machine, or of the container or job if that has a lower limit.

    groups: where the system keeps the memory limits of the process
    """
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit, used in _GROUP_FILES.items():
        try:
            left = int((groups / limit).read_text()) - int((groups / used).read_text())
        except (OSError, ValueError):  # no such limit
            continue
        available = min(available, max(0, left))
    return available
