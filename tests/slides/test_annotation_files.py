"""Annotations as ASAP and QuPath read them."""

import json
from xml.etree import ElementTree

import numpy as np
from shapely.geometry import shape

from asmil.slides.annotations.writing import write_asap, write_geojson
from asmil.slides.tissue.regions import Region

SQUARE = np.array([[10, 20], [110, 20], [110, 220], [10, 220]], dtype=np.int32)
HOLE = np.array([[30, 40], [50, 40], [50, 60], [30, 60]], dtype=np.int32)
REGIONS = (Region(SQUARE, (HOLE,)), Region(SQUARE + 500))


def test_asap_has_regions_holes_and_groups(tmp_path):
    write_asap(tmp_path / "a.xml", REGIONS, "tumor")
    root = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert root.tag == "ASAP_Annotations"
    found = [
        (
            annotation.get("PartOfGroup"),
            [[float(point.get(axis)) for axis in "XY"] for point in annotation.iter("Coordinate")],
        )
        for annotation in root.iter("Annotation")
    ]
    wanted = [("tumor", SQUARE), ("tumor", SQUARE + 500), ("exclusion", HOLE)]
    assert found == [(group, outline.tolist()) for group, outline in wanted]
    assert all(annotation.get("Type") == "Polygon" for annotation in root.iter("Annotation"))
    assert [group.get("Name") for group in root.iter("Group")] == ["tumor", "exclusion"]


def test_geojson_has_closed_rings_with_holes(tmp_path):
    write_geojson(tmp_path / "a.geojson", REGIONS, "tumor")
    collection = json.loads((tmp_path / "a.geojson").read_text())
    assert collection["type"] == "FeatureCollection"
    polygons = [shape(feature["geometry"]) for feature in collection["features"]]
    assert [polygon.area for polygon in polygons] == [100 * 200 - 20 * 20, 100 * 200]
    for feature in collection["features"]:
        assert feature["properties"]["objectType"] == "annotation"
        assert feature["properties"]["classification"]["name"] == "tumor"
        assert all(ring[0] == ring[-1] for ring in feature["geometry"]["coordinates"])


def test_no_regions_make_valid_files(tmp_path):
    write_asap(tmp_path / "a.xml", (), "tumor")
    write_geojson(tmp_path / "a.geojson", (), "tumor")
    assert not list(ElementTree.parse(tmp_path / "a.xml").getroot().iter("Annotation"))
    assert json.loads((tmp_path / "a.geojson").read_text())["features"] == []
