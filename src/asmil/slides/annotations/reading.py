"""Reading a file of annotations, whichever tool made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shapely.affinity import translate

from asmil.errors import AsmilError
from asmil.files import refuse_special_file
from asmil.slides.annotations.json_files import read_json
from asmil.slides.annotations.mask_tiff import mask_outlines
from asmil.slides.annotations.regions import AnnotatedRegion, Annotations
from asmil.slides.annotations.xml_files import read_xml
from asmil.slides.levels import Size

XML_SUFFIXES = (".xml",)
JSON_SUFFIXES = (".geojson", ".json")
MASK_SUFFIXES = (".tif", ".tiff")
ANNOTATION_SUFFIXES = (*JSON_SUFFIXES, *XML_SUFFIXES, *MASK_SUFFIXES)
"""In the order in which they are preferred where a slide has several files; masks, which are coarser, come last."""


def read_annotations(path: Path | str) -> Annotations:
    """The regions of an ASAP or Aperio XML file, a QuPath GeoJSON file or an NCRF JSON file, in level-0 pixels.

    A valid file without regions is returned as such; a damaged one is an error. Masks are
    pictures, not outlines: `asmil.slides.annotations.read_mask` reads them.
    """
    path = Path(path)
    refuse_special_file(path)
    if not path.is_file():
        raise AsmilError(f"{path}: the annotation file does not exist; correct the path")
    if path.stat().st_size == 0:
        raise AsmilError(f"{path}: the annotation file is empty; copy it again, or save it again")
    suffix = path.suffix.lower()
    if suffix in XML_SUFFIXES:
        return read_xml(path)
    if suffix in JSON_SUFFIXES:
        return read_json(path)
    raise AsmilError(
        f"{path}: annotations are read from {', '.join((*XML_SUFFIXES, *JSON_SUFFIXES))}, masks from "
        f"{', '.join(MASK_SUFFIXES)}; export them as one of these"
    )


def regions_on_slide(
    path: Path, size_px: Size, origin: tuple[int, int] = (0, 0), mask_value: int | None = None
) -> list[AnnotatedRegion]:
    """The regions of any annotation file, in level-0 pixels; a mask is one region without a class.

    size_px: width and height of the slide, from which the scale of a mask follows
    origin: the corner of the slide's bounds. GeoJSON is QuPath's and counts from it; other files do not
    mask_value: that of tumor, if the file is a mask with several
    """
    if path.suffix.lower() in MASK_SUFFIXES:
        marked = mask_outlines(path, size_px, mask_value)
        return [AnnotatedRegion(None, marked)] if marked.geoms else []
    found = read_annotations(path)
    shift = origin if found.kind == "geojson" else (0, 0)
    return [replace(region, shape=translate(region.shape, *shift)) for region in found.regions]
