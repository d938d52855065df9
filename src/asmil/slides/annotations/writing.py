"""Write outlines for pathologists' tools: ASAP's XML and QuPath's GeoJSON, in level-0 pixels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from asmil.files import write_text
from asmil.slides.tissue.geojson import annotation_collection
from asmil.slides.tissue.regions import Polygon, Region

REGION_COLOR = (200, 0, 0)
HOLE_COLOR = (64, 64, 64)
HOLE_GROUP = "exclusion"


def write_asap(path: Path | str, regions: Sequence[Region], label: str) -> None:
    """Write ASAP XML: one annotation per region in the group `label`, one per hole in the group `exclusion`."""
    root = ElementTree.Element("ASAP_Annotations")
    annotations = ElementTree.SubElement(root, "Annotations")
    groups = {label: REGION_COLOR, HOLE_GROUP: HOLE_COLOR}
    outlines = [(label, region.outline) for region in regions]
    outlines += [(HOLE_GROUP, hole) for region in regions for hole in region.holes]
    for number, (group, outline) in enumerate(outlines):
        _add_polygon(annotations, f"Annotation {number}", group, groups[group], outline)
    listed = ElementTree.SubElement(root, "AnnotationGroups")
    for group, color in groups.items():
        entry = {"Name": group, "PartOfGroup": "None", "Color": _hex(color)}
        ElementTree.SubElement(ElementTree.SubElement(listed, "Group", entry), "Attributes")
    ElementTree.indent(root, "\t")
    write_text(path, '<?xml version="1.0"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n")


def write_geojson(path: Path | str, regions: Sequence[Region], label: str) -> None:
    """Write a FeatureCollection that QuPath imports: one polygon per region, its holes as inner rings."""
    outlines = [("Polygon", [_ring(ring) for ring in (region.outline, *region.holes)]) for region in regions]
    write_text(path, json.dumps(annotation_collection(outlines, label, REGION_COLOR)) + "\n")


def _add_polygon(
    parent: ElementTree.Element, name: str, group: str, color: tuple[int, int, int], outline: Polygon
) -> None:
    attributes = {"Name": name, "Type": "Polygon", "PartOfGroup": group, "Color": _hex(color)}
    annotation = ElementTree.SubElement(parent, "Annotation", attributes)
    coordinates = ElementTree.SubElement(annotation, "Coordinates")
    for order, (x, y) in enumerate(outline.tolist()):
        ElementTree.SubElement(coordinates, "Coordinate", {"Order": str(order), "X": str(x), "Y": str(y)})


def _ring(outline: Polygon) -> list[Any]:
    points: list[Any] = outline.tolist()
    return [*points, points[0]]


def _hex(color: tuple[int, int, int]) -> str:
    return "#{:02X}{:02X}{:02X}".format(*color)
