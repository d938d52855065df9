"""The cores that this process may use: not more than its CPU affinity and its control groups (containers) allow."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CPUS = Path("/sys/devices/system/cpu")
THREADS = "OMP_NUM_THREADS"


def usable_cores() -> int:
    """The cores of the machine within the affinity of the process and the quota of its control groups, at least 1."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, *(math.ceil(quota) for quota in _quotas()), available))


def physical_cores() -> int:
    """The same, but the hyper-threads of a core count once: two trainings on one core slow each other down."""
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    return min(usable_cores(), len({_hyper_threads(cpu) for cpu in os.sched_getaffinity(0)}))


def own_cores() -> int:
    """The cores for what this process does at the same time: `OMP_NUM_THREADS`, or all physical ones."""
    given = os.environ.get(THREADS, "")
    return max(1, int(given)) if given.isdecimal() else physical_cores()


def _hyper_threads(cpu: int) -> str:
    try:
        return (CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def respect_quota() -> None:
    """Let torch start at most as many threads as the quota allows, unless `OMP_NUM_THREADS` is set.

    torch counts the cores of the machine, and more threads than the quota allows slow each other down. Has an effect
    before torch is imported.
    """
    if any(True for _ in _quotas()):
        os.environ.setdefault(THREADS, str(usable_cores()))


def _quotas() -> Iterator[float]:
    """The quotas of the control groups of this process and of those that contain them, in cores."""
    with suppress(OSError):
        for line in MEMBERSHIP.read_text().splitlines():
            _, controllers, path = line.split(":", maxsplit=2)
            if controllers not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
                continue
            root = GROUPS / controllers
            inside = Path(path.lstrip("/"))
            for group in [root / inside, *(root / parent for parent in inside.parents), root]:
                yield from _quota_of(group)


def _quota_of(group: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota_us = int((group / "cpu.cfs_quota_us").read_text())
        if quota_us > 0:
            yield quota_us / int((group / "cpu.cfs_period_us").read_text())
