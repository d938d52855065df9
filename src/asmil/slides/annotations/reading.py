"""Read annotation files of any supported tool; files may be packed with gzip or zip, as QuPath does on request."""

from __future__ import annotations

import gzip
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from shapely.affinity import translate

from asmil.errors import AsmilError
from asmil.files import refuse_special_file
from asmil.slides.annotations.mask_tiff import mask_outlines
from asmil.slides.annotations.regions import AnnotatedRegion, Annotations, Collector, Ring
from asmil.slides.image import Size

XML_SUFFIXES = (".xml",)
JSON_SUFFIXES = (".geojson", ".geojson.gz", ".geojson.zip", ".zip", ".json", ".json.gz", ".json.zip")
MASK_SUFFIXES = (".tif", ".tiff")
PNG_SUFFIX = ".png"
ANNOTATION_SUFFIXES = (*JSON_SUFFIXES, *XML_SUFFIXES, *MASK_SUFFIXES)
"""In order of preference if a slide has several files; masks, which are coarser, come last."""
TISSUE_SUFFIXES = (*ANNOTATION_SUFFIXES, PNG_SUFFIX)
"""Of files that say where tissue is. Folders of annotations often hold PNG pictures that are no masks."""
NCRF_TUMOR, NCRF_HOLE = "positive", "negative"
ANNOTATION = "annotation"
FORMER_TYPES = {
    "PathDetectionObject": "detection",
    "PathCellObject": "cell",
    "PathTileObject": "tile",
    "TMACoreObject": "tmaCore",
    "PathRootObject": "root",
}
"""QuPath 0.2 wrote the type of an object as the id of its feature."""
TRIDENT_ID = "tissue_id"
"""The only property of the contours that TRIDENT writes; QuPath drops it."""
MOST_BYTES = 2**31
"""Of a file after unpacking; a packed file may be small and grow without end."""
UNPACK_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)
ASAP_ROOT, APERIO_ROOT = "ASAP_Annotations", "Annotations"
APERIO_UNNAMED = "Description"
ASAP_AREAS = ("polygon", "spline", "rectangle")
NO_GROUP = ("", "none")


def read_annotations(path: Path | str) -> Annotations:
    """The regions of an ASAP or Aperio XML file, a QuPath GeoJSON file or an NCRF JSON file, in level-0 pixels.

    A valid file without regions gives an empty result; a damaged file is an error. For masks, use
    `asmil.slides.annotations.read_mask`.
    """
    path = Path(path)
    refuse_special_file(path)
    if not path.is_file():
        raise AsmilError(f"{path}: the annotation file does not exist; fix the path")
    if path.stat().st_size == 0:
        raise AsmilError(f"{path}: the annotation file is empty; copy it again, or save it again")
    suffix = annotation_suffix(path)
    if suffix in XML_SUFFIXES:
        return read_xml(path)
    if suffix in JSON_SUFFIXES:
        return read_json(path)
    raise AsmilError(
        f"{path}: supported annotation files are {', '.join((*XML_SUFFIXES, *JSON_SUFFIXES))}, supported masks "
        f"{', '.join(MASK_SUFFIXES)}; export the annotations as one of these"
    )


def annotation_suffix(path: Path, suffixes: Sequence[str] = ANNOTATION_SUFFIXES) -> str:
    """The ending of an annotation file in lower case, with both parts of `.geojson.gz`; empty for other files."""
    name = path.name.lower()
    return max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="")


def regions_on_slide(
    path: Path, size_px: Size, origin: tuple[int, int] = (0, 0), mask_value: int | None = None
) -> list[AnnotatedRegion]:
    """The regions of any annotation file, in level-0 pixels; a mask is one region without a class.

    size_px: width and height of the slide, from which the scale of a mask follows
    origin: the corner of the slide's bounds, see `at_level_0`
    mask_value: that of tumor, if the file is a mask with several
    """
    if path.suffix.lower() in MASK_SUFFIXES:
        marked = mask_outlines(path, size_px, mask_value)
        return [AnnotatedRegion(None, marked)] if marked.geoms else []
    return list(at_level_0(read_annotations(path), origin).regions)


def at_level_0(annotations: Annotations, origin: tuple[int, int]) -> Annotations:
    """The annotations, counted from the corner of the whole image.

    origin: the corner of the slide's bounds. QuPath counts from it, and so does all GeoJSON but TRIDENT's; other files
        do not
    """
    if annotations.kind != "geojson" or origin == (0, 0):
        return annotations
    moved = (replace(region, shape=translate(region.shape, *origin)) for region in annotations.regions)
    return replace(annotations, regions=tuple(moved))


def read_json(path: Path) -> Annotations:
    """Read a GeoJSON file (a collection, an array or one feature), or one of NCRF; plain, gzip or zip."""
    try:
        value = json.loads(unpacked(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # invalid JSON or UTF-8, huge numbers, too many nested brackets
        raise AsmilError(
            f"{path}: the JSON is damaged ({error}); copy the file again, or save it again in the tool that made it"
        ) from None
    try:
        if isinstance(value, Mapping) and NCRF_TUMOR in value:
            return _read_ncrf(path, value)
        return _read_features(path, _features(value))
    except AsmilError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise AsmilError(
            f"{path}: the file contains neither GeoJSON features nor vertex lists ({type(error).__name__}: {error}); "
            "export the annotations from QuPath as GeoJSON"
        ) from None


def _features(value: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(value, list):
        return value
    if value["type"] == "FeatureCollection":
        return value["features"]
    if value["type"] == "Feature":
        return [value]
    if value["type"] in ("Polygon", "MultiPolygon"):
        return [{"geometry": value}]
    raise ValueError(f"type {value['type']!r}")


def _read_features(path: Path, features: Iterable[Mapping[str, Any]]) -> Annotations:
    features = list(features)
    of_trident = bool(features) and all(TRIDENT_ID in (feature.get("properties") or {}) for feature in features)
    collector = Collector(path, "trident" if of_trident else "geojson")
    for feature in features:
        properties = feature.get("properties") or {}
        object_type = _object_type(feature, properties)
        geometry = feature["geometry"] or {"type": "missing geometry"}
        if object_type.lower() != ANNOTATION:
            collector.leave_out(f"of QuPath type {object_type}")
        else:
            _add_geometry(collector, geometry, _class_name(properties))
    return collector.finish()


def _add_geometry(collector: Collector, geometry: Mapping[str, Any], group: str | None) -> None:
    if geometry["type"] == "Polygon":
        collector.add(_rings(geometry["coordinates"]), group)
    elif geometry["type"] == "MultiPolygon":
        for polygon in geometry["coordinates"]:
            collector.add(_rings(polygon), group)
    elif geometry["type"] == "GeometryCollection":
        for part in geometry["geometries"]:
            _add_geometry(collector, part, group)
    else:
        collector.leave_out(f"of type {geometry['type']}, which has no area,")


def _object_type(feature: Mapping[str, Any], properties: Mapping[str, Any]) -> str:
    """What an object is for QuPath: `objectType`, in version 0.3 `object_type`, before that the id."""
    stated = properties.get("objectType") or properties.get("object_type")
    return str(stated or FORMER_TYPES.get(str(feature.get("id"))) or ANNOTATION)


def _read_ncrf(path: Path, value: Mapping[str, Any]) -> Annotations:
    collector = Collector(path, "ncrf")
    for group in (NCRF_TUMOR, NCRF_HOLE):
        for outline in value.get(group, []):
            collector.add(_rings([outline["vertices"]]), group, cut_out=group == NCRF_HOLE)
    return collector.finish()


def _class_name(properties: Mapping[str, Any]) -> str | None:
    classification = properties.get("classification")
    if isinstance(classification, Mapping):
        classification = classification.get("name") or ": ".join(classification.get("names") or ())
    return str(classification).strip() if classification else None


def _rings(rings: Iterable[Any]) -> list[Ring]:
    points = (np.asarray(ring, dtype=np.float64) for ring in rings)
    # a third coordinate, if any, is the height
    return [ring.reshape(0, 2) if ring.size == 0 else ring[..., :2] for ring in points]


def read_xml(path: Path) -> Annotations:
    """Read an XML file of ASAP or Aperio, recognized by the root element."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # damaged, or an unknown encoding
        raise AsmilError(
            f"{path}: the XML is damaged ({error}); copy the file again, or save it again in the tool that made it"
        ) from None
    if root.tag == ASAP_ROOT:
        return _read_asap(path, root)
    if root.tag == APERIO_ROOT:
        return _read_aperio(path, root)
    raise AsmilError(
        f"{path}: the root element is <{root.tag}>, neither <{ASAP_ROOT}> (ASAP) nor <{APERIO_ROOT}> (Aperio); "
        "give a file of one of these tools"
    )


def _read_asap(path: Path, root: Element) -> Annotations:
    collector = Collector(path, "asap")
    for annotation in root.iter("Annotation"):
        kind = annotation.get("Type", "Polygon")
        if kind.lower() not in ASAP_AREAS:
            collector.leave_out(f"of type {kind}, which has no area,")
            continue
        points = sorted(annotation.iter("Coordinate"), key=lambda point: _number(path, point, "Order"))
        collector.add([_ring(path, points)], _name(annotation.get("PartOfGroup")))
    return collector.finish()


def _read_aperio(path: Path, root: Element) -> Annotations:
    collector = Collector(path, "aperio")
    for layer in root.iter("Annotation"):
        group = _layer_name(layer)
        for region in layer.iter("Region"):
            collector.add([_ring(path, region.iter("Vertex"))], group, region.get("NegativeROA", "0").strip() == "1")
    return collector.finish()


def _layer_name(layer: Element) -> str:
    """The name of a layer, or its first attribute, which ImageScope shows as its name, or its number."""
    attribute = layer.find("Attributes/Attribute")
    shown = None
    if attribute is not None:
        shown = _name(attribute.get("Value" if attribute.get("Name") == APERIO_UNNAMED else "Name"))
    return _name(layer.get("Name")) or shown or f"layer {layer.get('Id', '?')}"


def _ring(path: Path, points: Iterable[Element]) -> Ring:
    pairs = [(_number(path, point, "X"), _number(path, point, "Y")) for point in points]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _number(path: Path, point: Element, name: str) -> float:
    text = point.get(name, "")
    try:
        value = float(text.replace(",", "."))  # some versions use the decimal separator of the system language
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise AsmilError(f"{path}: a <{point.tag}> has {name} = '{text}', which is not a number; save the file again")
    return value


def _name(text: str | None) -> str | None:
    return None if text is None or text.strip().lower() in NO_GROUP else text.strip()


def unpacked(path: Path) -> bytes:
    """The bytes of a plain file, of a gzip file, or of the only GeoJSON file in a zip archive."""
    suffix = path.suffix.lower()
    if suffix not in (".gz", ".zip"):
        return path.read_bytes()
    try:
        if suffix == ".zip":
            content = _from_zip(path)
        else:
            with gzip.open(path) as file:
                content = file.read(MOST_BYTES + 1)
    except UNPACK_ERRORS as error:
        raise AsmilError(f"{path}: the file cannot be unpacked ({error}); copy it again, or export it again") from None
    if len(content) > MOST_BYTES:
        raise AsmilError(f"{path}: the file is larger than {MOST_BYTES >> 30} GiB when unpacked; export fewer objects")
    return content


def _from_zip(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.lower().endswith((".geojson", ".json"))
            and not any(part.startswith(("__", ".")) for part in PurePosixPath(name).parts)
        ]
        if len(names) != 1:
            raise AsmilError(
                f"{path}: the archive must contain one file of annotations (.geojson, .json), but there are "
                f"{len(names)} ({', '.join(names) or 'none'}); export the annotations of one slide into one archive"
            )
        with archive.open(names[0]) as file:
            return file.read(MOST_BYTES + 1)
