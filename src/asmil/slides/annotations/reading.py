"""Reading a file of outlines, whichever tool drew them."""

from __future__ import annotations

from pathlib import Path

from asmil.errors import AsmilError
from asmil.files import refuse_special_file
from asmil.slides.annotations.json_files import read_json
from asmil.slides.annotations.regions import Annotations
from asmil.slides.annotations.xml_files import read_xml

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
