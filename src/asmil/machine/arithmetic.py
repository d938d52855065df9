"""The state of the process that affects the bits of a result, made the same for every caller.

- Denormal numbers (below 1e-38) can be computed with or replaced by zero. Gradients of a loss that is nearly 0 are
  denormal, and some CPUs are a hundred times slower with them, so here they are zero. The switch belongs to a thread,
  and torch's helper threads inherit it from their caller when they start. In a process of its own, asmil restarts
  them; in another program, it leaves them alone, and denormal numbers are zero in the calling thread only.
- The number of threads decides in which order torch computes long sums.
- oneDNN computes some of torch's products, and without it they are rounded differently. torch itself turns it off, for
  the whole process, after a product in bf16 on a CPU that has no bf16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import local

import torch

from asmil.machine.process import owns_process

_inside = local()
_PAUSE_SOFT = 1


@contextmanager
def exact_arithmetic(threads: int | None = None) -> Iterator[None]:
    """Compute with denormal numbers as zero, with oneDNN, and with this many threads (None: as many as now).

    What the caller had set is restored at the end. Inside another block, only `threads` has an effect.
    """
    threads_before = torch.get_num_threads()
    if threads is not None and threads != threads_before:
        torch.set_num_threads(threads)
    outermost = not getattr(_inside, "active", False)
    if outermost:
        flushed_before, onednn_before = _flushes_denormals(), torch.backends.mkldnn.enabled
        _inside.active = True
        _flush_denormals(True)
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    try:
        yield
    finally:
        if outermost:
            _inside.active = False
            _flush_denormals(flushed_before)
            torch.backends.mkldnn.enabled = onednn_before
        if torch.get_num_threads() != threads_before:
            torch.set_num_threads(threads_before)


def _flushes_denormals() -> bool:
    """Whether the calling thread replaces denormal numbers by zero; torch can set it, but not report it."""
    return bool(torch.tensor(torch.finfo(torch.float32).tiny) * 0.5 == 0)


def _flush_denormals(on: bool) -> None:
    """Set it for the calling thread; in a process of asmil's own, restart torch's helper threads, which inherit it."""
    torch.set_flush_denormal(on)
    pause = _pause_helpers() if owns_process() else None
    if pause is not None:
        pause(_PAUSE_SOFT)


@cache
def _pause_helpers() -> ctypes._NamedFuncPointer | None:
    """OpenMP's function that ends the helper threads of the calling thread until they are needed again.

    It must belong to the library that torch has loaded, whose name differs between builds. None: not Linux, or another
    library, whose threads keep the state in which they started.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    beside_torch = str(Path(torch.__file__).resolve().parent)
    loaded = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "libgomp" in line}
    of_torch = sorted(path for path in loaded if path.startswith(beside_torch)) or sorted(loaded)
    return getattr(ctypes.CDLL(of_torch[0]), "omp_pause_resource_all", None) if of_torch else None
