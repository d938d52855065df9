"""Open a slide of any format: OpenSlide identifies the file, and the fastest suitable reader reads it."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path

import openslide
import tifffile

from asmil.errors import AsmilError, did_you_mean, first_line
from asmil.files import refuse_special_file
from asmil.slides.file_names import any_dicom_file, dicom_files, is_picture
from asmil.slides.image import Resolution, SlideImage
from asmil.slides.openslide_image import OpenSlideImage, levels_with_whole_tiles
from asmil.slides.picture_image import PictureImage
from asmil.slides.resolution import from_properties
from asmil.slides.tiff_image import TiffImage
from asmil.slides.tiff_pages import (
    TIFF_ERRORS,
    find_levels,
    pages_like,
    refuse_absurd_pages,
    refuse_looping_pages,
    tiff_resolution,
)
from asmil.tables.names import PICTURE_SUFFIXES, SLIDE_SUFFIXES

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
READ_HERE = ("aperio", "generic-tiff")
"""Vendors whose levels are plain tiled pages: decoding them directly gives the same pixels several times faster."""
UNSUPPORTED_CODEC = "Unsupported transfer syntax"
"""OpenSlide's words for DICOM files compressed as JPEG XL or high-throughput JPEG 2000."""
COPY_AGAIN = "copy the file again from its source"

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # damage is reported as an AsmilError instead


def open_slide(path: Path | str, mpp: float | None = None) -> SlideImage:
    """Open a slide file, a plain picture or a folder of DICOM files.

    mpp: microns per level-0 pixel; overrides the file
    """
    path = Path(path)
    given = None
    if mpp is not None:
        if not (math.isfinite(mpp) and mpp > 0):
            raise AsmilError(f"{path}: mpp {mpp:g} is not a resolution; give microns per pixel, such as 0.25")
        given = Resolution(mpp, mpp, "given")
    refuse_absent(path)
    if path.is_dir():
        if not dicom_files(path):
            raise AsmilError(f"{path}: this is a folder, but not a DICOM slide; give a slide in it")
        path = any_dicom_file(path)
    start = _first_bytes(path)
    if is_picture(path):
        return PictureImage(path, given)
    is_tiff = start in TIFF_STARTS
    if is_tiff:
        refuse_looping_pages(path)
        refuse_absurd_pages(path)
    try:
        return _open_with_openslide(path, given)
    except openslide.OpenSlideUnsupportedFormatError:
        if is_tiff:
            return _open_with_tifffile(path, given)
        raise AsmilError(
            f"{path}: this is not a slide; supported formats are {', '.join(SLIDE_SUFFIXES)}, and the pictures "
            f"{', '.join(PICTURE_SUFFIXES)}"
        ) from None
    except openslide.OpenSlideError as error:
        if UNSUPPORTED_CODEC in str(error):
            raise AsmilError(
                f"{path}: OpenSlide cannot read the compression of this DICOM slide ({first_line(error)}); convert the "
                "slide to JPEG or JPEG 2000, for example with wsidicomizer --format jpeg2000 --force-transcoding"
            ) from error
        raise AsmilError(f"{path}: the slide is damaged ({first_line(error)}); {COPY_AGAIN}") from error


def require_resolution(image: SlideImage) -> Resolution:
    """The resolution of a slide, or an error that explains how to give it."""
    if image.resolution is None:
        raise AsmilError(
            f"{image.path}: slide '{image.name}' does not state its resolution; give microns per level-0 pixel with "
            "--mpp, in a column 'mpp' of the table of slides, or in the file itself (TIFF resolution or OME-XML)"
        )
    return image.resolution


def refuse_absent(path: Path) -> None:
    """Raise if a path does not exist, with similar names in its folder, or cannot be read."""
    if path.exists():
        refuse_special_file(path)
        return
    folder = path.parent
    if not folder.is_dir():
        raise AsmilError(f"{path}: the folder {folder} does not exist; fix the path")
    siblings = [sibling.name for sibling in folder.iterdir() if not sibling.name.startswith(".")]
    near = get_close_matches(path.name, siblings, n=1)
    hint = did_you_mean(path.name, siblings) if near else "fix the path"
    raise AsmilError(f"{path}: the file does not exist; {hint}")


def _open_with_openslide(path: Path, given: Resolution | None) -> SlideImage:
    slide = openslide.OpenSlide(path)
    vendor = slide.properties.get("openslide.vendor")
    if vendor in READ_HERE:
        try:
            image = _same_tiff(path, slide, given)
        except AsmilError:
            raise
        except TIFF_ERRORS:
            image = None
        if image is not None:
            slide.close()
            return image
    levels = levels_with_whole_tiles(path, slide.level_dimensions) if vendor == "dicom" else None
    return OpenSlideImage(path, slide, given or from_properties(slide.properties), levels)


def _same_tiff(path: Path, slide: openslide.OpenSlide, given: Resolution | None) -> SlideImage | None:
    """A TIFF supported by OpenSlide, opened with tifffile if both read the same pixels, or tifffile more levels."""
    vendor = slide.properties["openslide.vendor"]
    with ExitStack() as stack:
        tiff = stack.enter_context(tifffile.TiffFile(path))
        pages = None
        resolution = given or from_properties(slide.properties)
        if vendor == "generic-tiff":
            levels = find_levels(tiff, path)
            if len(levels) > slide.level_count or tiff.is_ome:
                pages, resolution = levels, given or tiff_resolution(tiff, levels[0])
        pages = pages or pages_like(tiff, path, slide.level_dimensions)
        if pages is None:
            return None
        stack.pop_all()
        return TiffImage(path, tiff, pages, resolution, vendor)


def _open_with_tifffile(path: Path, given: Resolution | None) -> SlideImage:
    try:
        with ExitStack() as stack:
            tiff = stack.enter_context(tifffile.TiffFile(path))
            levels = find_levels(tiff, path)
            image = TiffImage(path, tiff, levels, given or tiff_resolution(tiff, levels[0]))
            stack.pop_all()
            return image
    except AsmilError:
        raise
    except TIFF_ERRORS as error:
        raise AsmilError(f"{path}: the TIFF is damaged ({first_line(error)}); {COPY_AGAIN}") from error


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise AsmilError(f"{path}: the file cannot be read ({error.strerror}); check its permissions") from error
    if not start:
        raise AsmilError(f"{path}: the file is empty; {COPY_AGAIN}")
    return start
