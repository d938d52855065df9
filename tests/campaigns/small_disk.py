"""A disk with little room: a tmpfs where the user may mount one, else a limit on the size of files."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

_NEW_NAMESPACE, _RECURSIVE, _PRIVATE, _REMOUNT = 0x20000, 0x4000, 1 << 18, 0x20
PAGE = 4096
ROOMY = 2**28


def own_mounts() -> bool:
    """Give this process mounts of its own, which vanish with it; False if it may not have any."""
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        hasattr(libc, "unshare")
        and libc.unshare(_NEW_NAMESPACE) == 0
        and libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) == 0
    )


class SmallDisk:
    """A tmpfs at a folder, which can be made smaller and larger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._mount(0, ROOMY)

    def leave(self, n_bytes: int) -> None:
        """Let so many bytes be free."""
        found = os.statvfs(self.folder)
        self._mount(_REMOUNT, (found.f_blocks - found.f_bfree) * found.f_frsize + max(PAGE, n_bytes))

    def make_room(self) -> None:
        """Let there be enough."""
        self._mount(_REMOUNT, ROOMY)

    def close(self) -> None:
        """Take the disk away, and all that is on it."""
        ctypes.CDLL(None).umount2(os.fsencode(self.folder), 2)

    def _mount(self, flags: int, n_bytes: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", os.fsencode(self.folder), b"tmpfs", flags, f"size={n_bytes}".encode()) != 0:
            raise OSError(ctypes.get_errno(), "the small disk cannot be mounted", str(self.folder))


def limited_files(n_bytes: int) -> Callable[[], None]:
    """Limits a process to files of so many bytes; writing more fails as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    return limit
