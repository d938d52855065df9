"""Which files are slides, by their endings, what a slide is called, and the files of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from asmil.names import PICTURE_SUFFIXES, SLIDE_SUFFIXES

__all__ = ["DICOM_SUFFIX", "PICTURE_SUFFIXES", "SLIDE_SUFFIXES", "is_picture", "is_slide", "slide_name"]

DICOM_SUFFIX = ".dcm"


def is_slide(path: Path) -> bool:
    """Whether the name ends like that of a slide."""
    return path.suffix.lower() in SLIDE_SUFFIXES


def is_picture(path: Path) -> bool:
    """Whether the name ends like that of a plain picture."""
    return path.suffix.lower() in PICTURE_SUFFIXES


def slide_name(path: Path) -> str:
    """The file without its ending; DICOM slides are called like their folder.

    >>> slide_name(Path("slides/a.1.svs")), slide_name(Path("slides/b.ome.tif")), slide_name(Path("slides/c/1.dcm"))
    ('a.1', 'b', 'c')
    """
    if path.suffix.lower() == DICOM_SUFFIX:
        return path.absolute().parent.name
    if path.is_dir():
        return path.absolute().name
    name = path.stem
    return name[:-4] if name.lower().endswith(".ome") and path.suffix.lower() in (".tif", ".tiff") else name


def walk_once(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """(folder, names of subfolders, names of files) as `os.walk` gives them; taking subfolders away leaves them out.

    Links are followed, but every folder is entered only once.
    """
    seen = set()
    for place, subfolders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        itself = here.stat()
        if (itself.st_dev, itself.st_ino) in seen:
            subfolders.clear()  # a link back to a folder above
            continue
        seen.add((itself.st_dev, itself.st_ino))
        yield here, subfolders, names
