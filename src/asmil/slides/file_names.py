"""The files of slides: which files are slides, what a slide is called, folders of slides, DICOM, and contents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from asmil.errors import AsmilError
from asmil.settings.made_from import Content, file_content, sampled_sha256
from asmil.tables.names import PICTURE_SUFFIXES, SLIDE_SUFFIXES

DICOM_SUFFIX, MIRAX_SUFFIX = ".dcm", ".mrxs"
HEADER_BYTES = 64 << 10
SOP_CLASS, SERIES = b"\x08\x00\x16\x00", b"\x20\x00\x0e\x00"
WHOLE_SLIDE = b"1.2.840.10008.5.1.4.1.1.77.1.6"


def is_slide(path: Path) -> bool:
    """Whether the file has the extension of a slide."""
    return path.suffix.lower() in SLIDE_SUFFIXES


def is_picture(path: Path) -> bool:
    """Whether the file has the extension of a plain picture."""
    return path.suffix.lower() in PICTURE_SUFFIXES


def slide_name(path: Path) -> str:
    """The file name without its extension; DICOM slides are named after their folder.

    >>> slide_name(Path("slides/a.1.svs")), slide_name(Path("slides/b.ome.tif")), slide_name(Path("slides/c/1.dcm"))
    ('a.1', 'b', 'c')
    """
    if path.suffix.lower() == DICOM_SUFFIX:
        return path.absolute().parent.name
    if path.is_dir():
        return path.absolute().name
    name = path.stem
    return name[:-4] if name.lower().endswith(".ome") and path.suffix.lower() in (".tif", ".tiff") else name


def slide_content(path: Path) -> Content:
    """The content of a file, of a folder (DICOM), or of a MIRAX file and its folder, to notice a replaced slide.

    Large files are sampled.
    """
    data = path.with_suffix("")
    has_folder = path.suffix.lower() == MIRAX_SUFFIX and data.is_dir()
    return file_content(path, *([data] if has_folder else []), checksum=sampled_sha256)


def walk_once(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """(folder, names of subfolders, names of files) as in `os.walk`; remove names of subfolders to skip them.

    Links are followed, but every folder is visited only once.
    """
    seen = set()
    for current, subfolders, names in os.walk(folder, followlinks=True):
        status = os.stat(current)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()  # a link back to a folder above
            continue
        seen.add((status.st_dev, status.st_ino))
        yield Path(current), subfolders, names


def dicom_files(folder: Path) -> list[Path]:
    """The DICOM files directly in a folder, without hidden ones."""
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
