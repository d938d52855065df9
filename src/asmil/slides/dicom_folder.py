"""Folders of DICOM files: each folder is one slide, and its levels are files."""

from __future__ import annotations

from pathlib import Path

from asmil.errors import AsmilError
from asmil.slides.file_names import DICOM_SUFFIX

HEADER_BYTES = 64 << 10
SOP_CLASS, SERIES = b"\x08\x00\x16\x00", b"\x20\x00\x0e\x00"
WHOLE_SLIDE = b"1.2.840.10008.5.1.4.1.1.77.1.6"


def dicom_files(folder: Path) -> list[Path]:
    """The DICOM files directly in a folder."""
    files = (path for path in folder.iterdir() if path.suffix.lower() == DICOM_SUFFIX and path.is_file())
    return sorted(path for path in files if not path.name.startswith("."))


def any_dicom_file(folder: Path) -> Path:
    """A file with which OpenSlide can open the slide of a folder."""
    series: dict[bytes, Path] = {}
    for path in dicom_files(folder):
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        if _unique_id(header, SOP_CLASS) == WHOLE_SLIDE:
            series.setdefault(_unique_id(header, SERIES), path)
    if len(series) > 1:
        names = ", ".join(path.name for path in list(series.values())[:3])
        raise AsmilError(
            f"{folder}: the folder contains {len(series)} DICOM slides (of {names}); put each into its own folder"
        )
    if not series:
        raise AsmilError(f"{folder}: none of its {DICOM_SUFFIX} files is a whole-slide image; give a folder with one")
    return next(iter(series.values()))


def _unique_id(header: bytes, tag: bytes) -> bytes:
    """The value of a UID in explicit little-endian DICOM, the format of all compressed images."""
    at = header.find(tag + b"UI")
    if at < 0:
        return b""
    length = int.from_bytes(header[at + 6 : at + 8], "little")
    return header[at + 8 : at + 8 + length].rstrip(b"\0 ")
