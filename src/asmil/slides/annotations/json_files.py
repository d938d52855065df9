"""Read outlines from JSON: QuPath's GeoJSON, and the vertex lists of the NCRF study for CAMELYON16."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asmil.errors import AsmilError
from asmil.slides.annotations.regions import Annotations, Collector, Ring

NCRF_TUMOR, NCRF_HOLE = "positive", "negative"
ANNOTATION = "annotation"


def read_json(path: Path) -> Annotations:
    """Read a GeoJSON file (a collection, an array or one feature), or one of NCRF."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
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
        features: list[Mapping[str, Any]] = value["features"]
        return features
    if value["type"] == "Feature":
        return [value]
    if value["type"] in ("Polygon", "MultiPolygon"):
        return [{"geometry": value}]
    raise ValueError(f"type {value['type']!r}")


def _read_features(path: Path, features: Iterable[Mapping[str, Any]]) -> Annotations:
    found = Collector(path, "geojson")
    for feature in features:
        properties = feature.get("properties") or {}
        object_type = str(properties.get("objectType") or ANNOTATION)
        geometry = feature["geometry"] or {"type": "missing geometry"}
        if object_type.lower() != ANNOTATION:
            found.leave_out(f"of QuPath type {object_type}")
        elif geometry["type"] == "Polygon":
            found.add(_rings(geometry["coordinates"]), _class_name(properties))
        elif geometry["type"] == "MultiPolygon":
            for polygon in geometry["coordinates"]:
                found.add(_rings(polygon), _class_name(properties))
        else:
            found.leave_out(f"of type {geometry['type']}, which has no area,")
    return found.finish()


def _read_ncrf(path: Path, value: Mapping[str, Any]) -> Annotations:
    found = Collector(path, "ncrf")
    for group in (NCRF_TUMOR, NCRF_HOLE):
        for outline in value.get(group, []):
            found.add(_rings([outline["vertices"]]), group, cut_out=group == NCRF_HOLE)
    return found.finish()


def _class_name(properties: Mapping[str, Any]) -> str | None:
    classification = properties.get("classification")
    if isinstance(classification, Mapping):
        classification = classification.get("name") or ": ".join(classification.get("names") or ())
    return str(classification).strip() if classification else None


def _rings(rings: Iterable[Any]) -> list[Ring]:
    found = []
    for ring in rings:
        points = np.asarray(ring, dtype=np.float64)
        # a third coordinate, if any, is the height
        found.append(points.reshape(0, 2) if points.size == 0 else points[..., :2])
    return found
