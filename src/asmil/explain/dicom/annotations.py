"""Tiles above a cut and outlines of pathologists as DICOM microscopy bulk simple annotations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import highdicom
import numpy as np
from highdicom.ann import AnnotationGroup, Measurements, MicroscopyBulkSimpleAnnotations
from pydicom.sr.codedict import codes
from shapely import box, get_coordinates, get_parts
from shapely.geometry import MultiPolygon, Polygon
from shapely.geometry.base import BaseGeometry

from asmil.explain.caveats import NO_CAVEATS, Caveats
from asmil.explain.dicom.identity import NO_UNIT, Algorithm, clipped, instance, own_code
from asmil.explain.dicom.source_image import SourceImage
from asmil.explain.qupath import high_tiles
from asmil.explain.tile_map import SlideFrame
from asmil.tables.arrays import Floats


def bulk_annotations(
    source: SourceImage,
    frame: SlideFrame,
    values: Floats,
    kind: str,
    cut: float,
    algorithm: Algorithm,
    outlines: Mapping[str, Sequence[MultiPolygon]],
    caveats: Caveats = NO_CAVEATS,
) -> MicroscopyBulkSimpleAnnotations | None:
    """One group of the tiles above the quantile `cut`, with their values, and one per class of outlines.

    None if there is nothing to annotate. caveats: written into the description of the tiles
    """
    groups = []
    high = high_tiles(values, cut)
    if len(high):
        corners = frame.coords[high].astype(np.float64)
        square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * frame.tile_px
        about = " ".join([f"{kind} above {100 * cut:g} % of the tiles.", *caveats.texts])
        groups.append(
            AnnotationGroup(
                number=1,
                uid=highdicom.UID(),
                label=clipped(f"high {kind}"),
                annotated_property_category=codes.SCT.SpatialAndRelationalConcept,
                annotated_property_type=own_code(f"high {kind}"),
                graphic_type="POLYGON",  # some readers know no rectangles
                graphic_data=[source.pixels(corner + square).astype(np.float32) for corner in corners],
                algorithm_type="AUTOMATIC",
                algorithm_identification=algorithm.identification(),
                measurements=[Measurements(own_code(kind), values[high].astype(np.float32), NO_UNIT)],
                description=about,
            )
        )
    for name, shapes in outlines.items():
        polygons = [part for shape in shapes for whole in get_parts(shape) for part in without_holes(whole)]
        if not polygons:
            continue
        groups.append(
            AnnotationGroup(
                number=len(groups) + 1,
                uid=highdicom.UID(),
                label=clipped(name),
                annotated_property_category=codes.SCT.SpatialAndRelationalConcept,
                annotated_property_type=own_code(name),
                graphic_type="POLYGON",
                graphic_data=[
                    source.pixels(get_coordinates(part.exterior)[:-1]).astype(np.float32) for part in polygons
                ],
                algorithm_type="MANUAL",
            )
        )
    if not groups:
        return None
    return MicroscopyBulkSimpleAnnotations(
        source_images=[source.dataset],
        annotation_coordinate_type="2D",
        annotation_groups=groups,
        content_description=clipped(f"{kind} by {algorithm.name}"),
        **instance("annotations", algorithm.name),
    )


def without_holes(polygon: Polygon) -> Iterator[Polygon]:
    """The polygon, cut through its holes into polygons without any: DICOM annotations have no holes."""
    if not polygon.interiors:
        yield polygon
        return
    left, top, right, bottom = polygon.bounds
    x = polygon.interiors[0].centroid.x
    for half in (box(left, top, x, bottom), box(x, top, right, bottom)):
        part: BaseGeometry
        for part in get_parts(polygon.intersection(half)):
            if isinstance(part, Polygon):
                yield from without_holes(part)
