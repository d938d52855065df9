"""Read outlines from XML files of ASAP and Aperio ImageScope."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from asmil.errors import AsmilError
from asmil.slides.annotations.regions import Annotations, Collector, Ring

ASAP_ROOT, APERIO_ROOT = "ASAP_Annotations", "Annotations"
APERIO_UNNAMED = "Description"
ASAP_AREAS = ("polygon", "spline", "rectangle")
NO_GROUP = ("", "none")


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
    found = Collector(path, "asap")
    for annotation in root.iter("Annotation"):
        kind = annotation.get("Type", "Polygon")
        if kind.lower() not in ASAP_AREAS:
            found.leave_out(f"of type {kind}, which has no area,")
            continue
        points = sorted(annotation.iter("Coordinate"), key=lambda point: _number(path, point, "Order"))
        found.add([_ring(path, points)], _name(annotation.get("PartOfGroup")))
    return found.finish()


def _read_aperio(path: Path, root: Element) -> Annotations:
    found = Collector(path, "aperio")
    for layer in root.iter("Annotation"):
        group = _layer_name(layer)
        for region in layer.iter("Region"):
            found.add([_ring(path, region.iter("Vertex"))], group, region.get("NegativeROA", "0").strip() == "1")
    return found.finish()


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
