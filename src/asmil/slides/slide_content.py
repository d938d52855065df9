"""The content of a slide's files, to notice that a slide was replaced."""

from __future__ import annotations

from pathlib import Path

from asmil.settings.made_from import Content, file_content, sampled_sha256

MIRAX_SUFFIX = ".mrxs"


def slide_content(path: Path) -> Content:
    """The file of a slide, all files of a folder (DICOM), or a MIRAX file with its folder; large files are sampled."""
    data = path.with_suffix("")
    has_folder = path.suffix.lower() == MIRAX_SUFFIX and data.is_dir()
    return file_content(path, *([data] if has_folder else []), checksum=sampled_sha256)
