"""Files: atomic writing, so that a killed process leaves the old file or the new one, and sizes."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from asmil.errors import AsmilError

ABANDONED_SECONDS = 3600.0
"""Older temporary files belong to no running process."""
DAMAGED = (OSError, ValueError, LookupError, TypeError, OverflowError, RuntimeError, MemoryError)
"""What every library raises on some damaged files; each raises others as well, found by testing many files."""
_being_written: set[Path] = set()
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{8}\.partial")


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, it becomes `path`.

    The temporary name ends in `.partial` and is removed if the block fails.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # not the process number: machines that share a disk have the same ones
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    _being_written.add(partial)
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except OSError as error:
        if is_disk_full(error):
            raise AsmilError(
                f"{path}: the disk is full (or a limit on file sizes is reached); free some space and run the same "
                "command again; finished files are kept"
            ) from error
        raise
    finally:
        partial.unlink(missing_ok=True)
        _being_written.discard(partial)


def discard_partials() -> None:
    """Remove partial files, for a process that ends at once in the middle of writing."""
    for partial in list(_being_written):
        partial.unlink(missing_ok=True)


def leftovers(folder: Path, below: bool = True) -> Iterator[tuple[Path, Path]]:
    """The temporary files in a folder, each with the file it would have become; below: also those in subfolders.

    Killed processes left them, or running ones are writing them.
    """
    for partial in folder.glob(f"{'**/' if below else ''}.*.partial"):
        named = _PARTIAL.fullmatch(partial.name)
        if named:
            yield partial, partial.with_name(named[1])


def remove_abandoned(folder: Path, below: bool = True) -> None:
    """Remove what killed processes left in a folder; younger files may belong to a running process."""
    for partial, _ in leftovers(folder, below):
        with suppress(FileNotFoundError):
            if time.time() - partial.stat().st_mtime > ABANDONED_SECONDS:
                partial.unlink()


def is_disk_full(error: OSError) -> bool:
    """Whether an error means that the disk is full; HDF5 reports it only in its message."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "no space left" in str(error).lower()


def refuse_special_file(path: Path | str) -> None:
    """Raise for a named pipe, a socket or a device: opening one may block. A path that does not exist passes."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise AsmilError(f"{path}: this is neither a file nor a folder (a named pipe, socket or device); remove it")


def files_of(path: Path) -> list[Path]:
    """The files in a folder and its subfolders, sorted; a path that is no folder is returned itself."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def bytes_of(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in files_of(path))


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
