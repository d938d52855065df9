"""Find the pages of a TIFF that are the levels of a slide, and explain why some cannot be read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import tifffile

from asmil.errors import AsmilError
from asmil.files import DAMAGED
from asmil.slides.image import Resolution, Size
from asmil.slides.resolution import from_ome, from_pixels_per_unit, plausible
from asmil.slides.tiff_image import Page, page_size, segment_grid

COMPRESSION = tifffile.COMPRESSION
PHOTOMETRIC = tifffile.PHOTOMETRIC
DECODED_ALIKE = (
    COMPRESSION.NONE,
    COMPRESSION.LZW,
    COMPRESSION.JPEG,
    COMPRESSION.ADOBE_DEFLATE,
    COMPRESSION.DEFLATE,
    COMPRESSION.APERIO_JP2000_RGB,
)
"""Compressions whose pixels are identical to those of OpenSlide (for JPEG 2000, up to rounding if the two libraries
were built for different CPUs)."""
ALPHA = (1, 2)
IMAGEJ_MICRONS = ("micron", "microns", "um", "µm", "\\u00B5m")
MOST_TILE_PIXELS = 1 << 28
TIFF_ERRORS = (*DAMAGED, AttributeError, ArithmeticError, struct.error)
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
_BIG = 43


def refuse_absurd_pages(path: Path) -> None:
    """Raise if tiles are too large or too few: OpenSlide would run out of memory and crash the process."""
    try:
        with tifffile.TiffFile(path) as tiff:
            absurd = any(_is_absurd(page) for page in tiff.pages)
    except TIFF_ERRORS:
        return
    if absurd:
        raise _cut_off(path)


def find_levels(tiff: tifffile.TiffFile, path: Path) -> list[Page]:
    """The pages of the first image, the finest first."""
    _refuse_cut_off(tiff, path)
    series = tiff.series[0]
    planes = len(series.pages)
    if planes > 1:
        raise AsmilError(
            f"{path}: the TIFF contains {planes} planes (channels, depths or times; axes {series.axes}) instead of "
            "one; save it as one RGB image"
        )
    pages = [level.keyframe for level in series.levels]
    for page in pages:
        _refuse_strange(page, path)
        _refuse_missing_data(page, path)
    return sorted(pages, key=lambda page: -page.imagewidth)


def pages_like(tiff: tifffile.TiffFile, path: Path, level_sizes: Sequence[Size]) -> list[Page] | None:
    """The tiled pages of these sizes, if they can be decoded here exactly as OpenSlide does."""
    by_size: dict[Size, Page] = {}
    page: Page
    for page in tiff.pages:
        if page.is_tiled:
            by_size.setdefault(page_size(page), page)
    pages = [by_size.get(size) for size in level_sizes]
    if not all(page is not None and _is_plain(page) for page in pages):
        return None
    for page in pages:
        _refuse_missing_data(page, path)
    return pages


def tiff_resolution(tiff: tifffile.TiffFile, page: Page) -> Resolution | None:
    """From OME-XML, from ImageJ's unit, or from the resolution tags."""
    if tiff.is_ome and tiff.ome_metadata:
        resolution = from_ome(tiff.ome_metadata)
        if resolution is not None:
            return resolution
    x, y = (_rational(page, name) for name in ("XResolution", "YResolution"))
    if tiff.is_imagej and (tiff.imagej_metadata or {}).get("unit") in IMAGEJ_MICRONS:
        return plausible(1 / x if x else None, 1 / y if y else None, "tiff")
    unit = tifffile.RESUNIT(page.tags.valueof("ResolutionUnit", tifffile.RESUNIT.INCH))
    return from_pixels_per_unit(x, y, unit.name)


def _is_absurd(page: Page) -> bool:
    if not page.is_tiled:
        return False
    grid = segment_grid(page)
    return grid.width * grid.height > MOST_TILE_PIXELS or grid.total > len(page.dataoffsets)


def _rational(page: Page, name: str) -> float | None:
    numerator, denominator = page.tags.valueof(name, (0, 1))
    return numerator / denominator if denominator else None


def _is_plain(page: Page) -> bool:
    photometric, compression = page.photometric, page.compression
    return (
        page.bitspersample == 8
        and page.samplesperpixel == 3
        and page.planarconfig == tifffile.PLANARCONFIG.CONTIG
        and compression in DECODED_ALIKE
        and (photometric == PHOTOMETRIC.RGB or (photometric == PHOTOMETRIC.YCBCR and compression == COMPRESSION.JPEG))
        and page.tags.valueof("Orientation", 1) == 1
        and all(page.databytecounts)
    )


def _refuse_strange(page: Page, path: Path) -> None:
    samples, photometric = page.samplesperpixel, page.photometric
    has_alpha = samples == 4 and photometric == PHOTOMETRIC.RGB and page.extrasamples[:1] in [(a,) for a in ALPHA]
    if page.bitspersample != 8 or page.dtype != "uint8":
        wrong = f"its pixels have {page.bitspersample} bits per channel ({page.dtype}), not 8"
    elif samples not in (1, 3) and not has_alpha:
        wrong = f"it has {samples} channels, neither RGB nor gray"
    elif photometric not in (PHOTOMETRIC.RGB, PHOTOMETRIC.YCBCR, PHOTOMETRIC.MINISBLACK, PHOTOMETRIC.MINISWHITE):
        wrong = f"its colors are coded as {photometric.name}"
    elif photometric == PHOTOMETRIC.YCBCR and page.compression != COMPRESSION.JPEG:
        wrong = f"its colors are coded as YCbCr with compression {page.compression.name}"
    else:
        return
    raise AsmilError(f"{path}: {wrong}; save the slide as an RGB TIFF of 8 bits per channel")


def _refuse_cut_off(tiff: tifffile.TiffFile, path: Path) -> None:
    """Raise if a truncated file has lost pages, or the offsets of pages."""
    layout, file = tiff.tiff, tiff.filehandle
    intact = False
    if len(tiff.pages) > 0:
        page: Page = tiff.pages[-1]
        file.seek(page.offset)
        (tags,) = struct.unpack(layout.tagnoformat, file.read(layout.tagnosize))
        file.seek(page.offset + layout.tagnosize + tags * layout.tagsize)
        intact = not any(file.read(layout.offsetsize))
    if not intact:
        raise _cut_off(path)


def _refuse_missing_data(page: Page, path: Path) -> None:
    """Raise if data is missing, when the slide is opened rather than after an hour of reading it."""
    starts, lengths = page.dataoffsets, page.databytecounts
    uncompressed = page.imagewidth * page.imagelength * page.samplesperpixel
    is_whole = (
        segment_grid(page).total <= len(starts) == len(lengths)
        and max(start + length for start, length in zip(starts, lengths, strict=True)) <= path.stat().st_size
        and (page.compression != COMPRESSION.NONE or sum(lengths) >= uncompressed)
    )
    if not is_whole:
        raise _cut_off(path)


def _cut_off(path: Path) -> AsmilError:
    return AsmilError(f"{path}: the TIFF is damaged, or its end is missing; copy the file again from its source")


def refuse_looping_pages(path: Path) -> None:
    """Raise if a page of a TIFF is followed by an earlier one; other damage is found when the pages are read."""
    if _has_loop(path):
        raise AsmilError(
            f"{path}: the TIFF is damaged: its list of pages has no end; copy the file again from its source"
        )


def _has_loop(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(16)
        order = _BYTE_ORDERS.get(start[:2])
        if order is None or len(start) < 16:
            return False
        (version,) = struct.unpack_from(order + "H", start, 2)
        count_format, offset_format, entry_bytes = ("Q", "Q", 20) if version == _BIG else ("H", "I", 12)
        (offset,) = struct.unpack_from(order + offset_format, start, 8 if version == _BIG else 4)
        size = path.stat().st_size
        seen: set[int] = set()
        while 0 < offset < size:
            if offset in seen:
                return True
            seen.add(offset)
            file.seek(offset)
            counted = file.read(struct.calcsize(count_format))
            if len(counted) < struct.calcsize(count_format):
                return False
            next_offset = offset + len(counted) + struct.unpack(order + count_format, counted)[0] * entry_bytes
            if next_offset >= size:
                return False
            file.seek(next_offset)
            following = file.read(struct.calcsize(offset_format))
            if len(following) < struct.calcsize(offset_format):
                return False
            (offset,) = struct.unpack(order + offset_format, following)
    return False
