"""One writer at a time: a lock that ends with its process, however that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from asmil.errors import AsmilError

try:
    import fcntl
except ImportError:  # Windows has no such lock; two writers of one folder are then the user's to avoid
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold the lock of the file `path`, which is made if it is missing and stays.

    busy: refuse with this sentence when another process holds the lock; default: wait for it
    """
    while True:
        with path.open("a") as file:
            _take(file.fileno(), busy)
            if _is_still_there(file.fileno(), path):
                yield
                return


@contextmanager
def locked_folder(folder: Path, name: str, busy: str) -> Iterator[None]:
    """Hold the lock `folder/name`; a folder that was made for it and got no other file is removed at the end."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / name, busy):
            try:
                yield
            finally:
                if made and {path.name for path in folder.iterdir()} == {name}:
                    (folder / name).unlink()
    finally:
        with suppress(OSError):  # not empty: it is in use
            for path in made:
                path.rmdir()


def _take(file: int, busy: str | None) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AsmilError(str(busy)) from None


def _is_still_there(file: int, path: Path) -> bool:
    """Whether the open file is the one at `path`: another process may have removed it before this one got the lock."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
