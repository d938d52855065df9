"""The content of an annotation file that may be packed with gzip or zip, as QuPath does when it is asked to."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from asmil.errors import AsmilError

MOST_BYTES = 2**31
"""Of a file after unpacking; a packed file may be small and grow without end."""
UNPACK_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)


def unpacked(path: Path) -> bytes:
    """The bytes of a plain file, of a gzip file, or of the only GeoJSON file in a zip archive."""
    suffix = path.suffix.lower()
    if suffix not in (".gz", ".zip"):
        return path.read_bytes()
    try:
        content = _from_gzip(path) if suffix == ".gz" else _from_zip(path)
    except UNPACK_ERRORS as error:
        raise AsmilError(f"{path}: the file cannot be unpacked ({error}); copy it again, or export it again") from None
    if len(content) > MOST_BYTES:
        raise AsmilError(f"{path}: the file is larger than {MOST_BYTES >> 30} GiB when unpacked; export fewer objects")
    return content


def _from_gzip(path: Path) -> bytes:
    with gzip.open(path) as file:
        return file.read(MOST_BYTES + 1)


def _from_zip(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _is_annotation(PurePosixPath(name))]
        if len(names) != 1:
            told = ", ".join(names) or "none"
            raise AsmilError(
                f"{path}: the archive must contain one file of annotations (.geojson, .json), but there are "
                f"{len(names)} ({told}); export the annotations of one slide into one archive"
            )
        with archive.open(names[0]) as file:
            return file.read(MOST_BYTES + 1)


def _is_annotation(name: PurePosixPath) -> bool:
    return name.suffix.lower() in (".geojson", ".json") and not any(part.startswith(("__", ".")) for part in name.parts)
