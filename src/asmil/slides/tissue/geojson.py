"""Export tissue as GeoJSON for QuPath: one annotation per piece, with its holes, in level-0 pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shapely import make_valid
from shapely.affinity import translate
from shapely.geometry import MultiPolygon, Polygon, mapping
from shapely.geometry.base import BaseGeometry

from asmil.slides.tissue.regions import Region, Tissue

CLASS_NAME = "Tissue"
CLASS_COLOR = [0, 170, 60]
SMALLEST_RING = 3


def tissue_geojson(tissue: Tissue, origin: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """A feature collection with one polygon (or several that touch) for each piece of tissue.

    origin: the corner of the slide's bounds, from which QuPath counts
    """
    x, y = origin
    shapes = [translate(shape, -x, -y) for region in tissue.regions if (shape := region_shape(region)) is not None]
    outlines = [(shape.geom_type, _rounded(mapping(shape)["coordinates"])) for shape in shapes]
    return annotation_collection(outlines, CLASS_NAME, CLASS_COLOR)


def annotation_collection(outlines: Iterable[tuple[str, Any]], name: str, color: Sequence[int]) -> dict[str, Any]:
    """Outlines, each a type of geometry and its coordinates, as annotations of one class that QuPath imports."""
    properties = {"objectType": "annotation", "classification": {"name": name, "color": list(color)}}
    features = [
        {"type": "Feature", "geometry": {"type": kind, "coordinates": coordinates}, "properties": properties}
        for kind, coordinates in outlines
    ]
    return {"type": "FeatureCollection", "features": features}


def region_shape(region: Region) -> Polygon | MultiPolygon | None:
    """The shape of a piece; None if its outline has no area.

    Outlines of masks may touch themselves, which is not a valid polygon: such a piece becomes several polygons.
    """
    if len(region.outline) < SMALLEST_RING:
        return None
    parts = polygons_of(Polygon(region.outline, [hole for hole in region.holes if len(hole) >= SMALLEST_RING]))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else MultiPolygon(parts)


def polygons_of(shape: BaseGeometry) -> list[Polygon]:
    """The parts of a shape that have an area, with outlines that do not cross themselves."""
    valid = shape if shape.is_valid else make_valid(shape)
    return [part for part in _polygons(valid) if part.area > 0]


def _polygons(shape: BaseGeometry) -> Iterator[Polygon]:
    if isinstance(shape, Polygon):
        yield shape
    else:
        for part in getattr(shape, "geoms", ()):
            yield from _polygons(part)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value) if value.is_integer() else round(value, 2)
    return [_rounded(part) for part in value]
