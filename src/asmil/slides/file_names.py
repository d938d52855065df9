"""Which files are slides, by their endings, and what a slide is called."""

from __future__ import annotations

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
