"""GeoJSON with the fields, types and packing that QuPath's exporter writes, read off its source.

`PathIO.exportObjectsAsGeoJSON`, `QuPathTypeAdapters` and `ROITypeAdapters` at commit e7662d8 (version 0.8 in
development). QuPath itself was not run.
"""

import gzip
import json
import math
import uuid
import zipfile

import pytest

from asmil.errors import AsmilError
from asmil.slides.annotations import read_annotations, regions_on_slide, tumor_area

TUMOR = {"name": "Tumor", "color": [200, 0, 0]}
RECTANGLE = [[10, 20], [110, 20], [110, 220], [10, 220], [10, 20]]
HOLE = [[30, 40], [50, 40], [50, 60], [30, 60], [30, 40]]


def exported(geometry, object_type="annotation", **properties):
    """One object: an id that is a UUID, the geometry, and properties in QuPath's order."""
    return {
        "type": "Feature",
        "id": str(uuid.UUID(int=7)),
        "geometry": geometry,
        "properties": {"objectType": object_type, "classification": TUMOR, **properties},
    }


def polygon(*rings, **members):
    return {"type": "Polygon", "coordinates": list(rings), **members}


def ellipse(x, y, width, height, points=96):
    """An EllipseROI is written as a polygon with coordinates of two digits and a foreign member."""
    ring = [
        [
            round(x + width / 2 * (1 + math.cos(2 * math.pi * step / points)), 2),
            round(y + height / 2 * (1 + math.sin(2 * math.pi * step / points)), 2),
        ]
        for step in range(points)
    ]
    return polygon([*ring, ring[0]], isEllipse=True)


OBJECTS = [
    exported(polygon(RECTANGLE, HOLE), name="area with a hole", isLocked=True, measurements={"Area": 19_600.0}),
    exported({"type": "MultiPolygon", "coordinates": [[[[x + 300, y] for x, y in RECTANGLE]]]}, color=[1, 2, 3]),
    exported(ellipse(1000, 1000, 200, 100)),
    exported(polygon([[x + 2000, y] for x, y in RECTANGLE], plane={"c": -1, "z": 2, "t": 0}), metadata={"a": "b"}),
    exported({"type": "LineString", "coordinates": [[0, 0], [5, 5]]}),
    exported({"type": "MultiPoint", "coordinates": [[0, 0], [5, 5]]}),
    exported(polygon(RECTANGLE), "cell") | {"nucleusGeometry": polygon(HOLE)},
    exported(polygon(RECTANGLE), "detection"),
    exported(polygon(RECTANGLE), "tmaCore", isMissing=False),
    exported({}, "root"),
]
AREA = 19_600 + 20_000 + math.pi * 100 * 50 + 20_000


def collection(objects):
    return {"type": "FeatureCollection", "features": objects}


def packed(path, value):
    """As `exportObjectsAsGeoJSON` does: the ending decides, and a zip archive has one entry."""
    text = json.dumps(value).encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{path.stem}.geojson", text)
    else:
        path.write_bytes(text)
    return path


@pytest.mark.parametrize("name", ["a.geojson", "a.geojson.gz", "a.zip", "A.GeoJSON.zip", "a.json.gz"])
@pytest.mark.parametrize("wrap", [list, collection], ids=["array", "collection"])
def test_areas_ellipses_and_packing(tmp_path, name, wrap):
    path = packed(tmp_path / name, wrap(OBJECTS))
    found = read_annotations(path)
    assert [region.group for region in found.regions] == ["Tumor"] * 4
    assert tumor_area(found).shape.area == pytest.approx(AREA, rel=2e-3)
    assert sum(int(note.split()[0]) for note in found.notes) == 6
    assert len(regions_on_slide(path, (4000, 4000))) == 4


def test_one_object_is_written_without_an_array(tmp_path):
    found = read_annotations(packed(tmp_path / "a.geojson.gz", exported(ellipse(0, 0, 60, 60))))
    assert found.regions[0].shape.area == pytest.approx(math.pi * 900, rel=2e-3)


@pytest.mark.parametrize(
    "cell",
    [
        exported(polygon(RECTANGLE), "") | {"id": "PathCellObject"},
        {"type": "Feature", "geometry": polygon(RECTANGLE), "properties": {"object_type": "detection"}},
    ],
    ids=["QuPath 0.2", "QuPath 0.3"],
)
def test_detections_of_earlier_versions_are_no_annotations(tmp_path, cell):
    found = read_annotations(packed(tmp_path / "a.geojson", [cell, OBJECTS[0]]))
    assert len(found.regions) == 1


def test_an_archive_made_on_a_mac_has_one_file_too(tmp_path):
    path = packed(tmp_path / "a.zip", OBJECTS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._a.geojson", b"\0")
    assert len(read_annotations(path).regions) == 4


@pytest.mark.parametrize("name", ["a.zip", "a.geojson.gz"])
def test_packed_files_that_are_damaged_are_named(tmp_path, name):
    path = packed(tmp_path / name, OBJECTS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(AsmilError, match=name):
        read_annotations(path)


@pytest.mark.parametrize("entries", [[], ["a.txt"], ["a.geojson", "b.geojson"]])
def test_an_archive_has_one_file_of_annotations(tmp_path, entries):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for entry in entries:
            archive.writestr(entry, json.dumps(OBJECTS))
    with pytest.raises(AsmilError, match=r"a\.zip"):
        read_annotations(tmp_path / "a.zip")


def test_what_grows_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("asmil.slides.annotations.reading.MOST_BYTES", 1 << 10)
    for name in ("a.zip", "a.geojson.gz"):
        with pytest.raises(AsmilError, match=name):
            read_annotations(packed(tmp_path / name, OBJECTS * 10))
