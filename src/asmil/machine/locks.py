"""One writer at a time: a lock that ends with its process, however that ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from asmil.errors import AsmilError


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold the lock of the file `path`, which is created if it is missing.

    busy: refuse with this sentence when another process holds the lock; default: wait for it
    """
    lock = FileLock(path, timeout=-1 if busy is None else 0)
    try:
        lock.acquire()
    except Timeout:
        raise AsmilError(str(busy)) from None
    try:
        yield
    finally:
        lock.release()


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
                    with suppress(PermissionError):  # Windows removes the file when the lock is released
                        (folder / name).unlink()
    finally:
        with suppress(OSError):  # not empty: it is in use
            for path in made:
                path.rmdir()
