"""GeoJSON for QuPath: the fields its reader takes, positions, and the way back through our own reader."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shapely.ops import unary_union

from array_slide import ArraySlide
from asmil import AsmilError
from asmil.explain.color_scale import color_scale
from asmil.explain.heatmaps import SlideOutlines
from asmil.explain.qupath import high_regions, write_regions, write_tiles
from asmil.explain.tile_map import slide_frame
from asmil.slides.annotations import read_annotations
from asmil.slides.openslide_image import OpenSlideImage

SIDE = 100


@pytest.fixture
def frame():
    x, y = np.meshgrid(np.arange(10) * SIDE + 300, np.arange(8) * SIDE + 500)
    return slide_frame("s", np.stack([x.ravel(), y.ravel()], axis=1), tile_px=float(SIDE))


def peaks() -> np.ndarray:
    """Two high spots: four tiles in the upper left corner, two in the lower right."""
    values = np.zeros((8, 10))
    values[:2, :2] = [[9.0, 8.0], [7.0, 6.0]]
    values[7, 8:] = 5.0
    return (values + np.linspace(0, 1e-3, 80).reshape(8, 10)).ravel()


def test_tiles_have_the_fields_that_qupath_reads(frame, tmp_path):
    values = peaks()
    values[10] = np.nan
    scale = color_scale(values, "percentile")
    probabilities = {'probability "a: 5 %"': np.linspace(0, 1, 80)}
    written = write_tiles(tmp_path / "t.geojson", frame, values, "attention", scale, probabilities, origin=(300, 400))
    content = json.loads((tmp_path / "t.geojson").read_text(encoding="utf-8"))
    assert content["type"] == "FeatureCollection"
    assert written == len(content["features"]) == 79
    first = content["features"][0]
    assert first["type"] == "Feature"
    assert first["geometry"] == {
        "type": "Polygon",
        "coordinates": [[[0, 100], [100, 100], [100, 200], [0, 200], [0, 100]]],
    }
    properties = first["properties"]
    assert properties["objectType"] == "tile"
    assert set(properties["classification"]) == {"name", "color"}
    assert ":" not in properties["classification"]["name"]
    assert all(0 <= part <= 255 for part in properties["classification"]["color"])
    assert properties["measurements"] == {"attention": 9.0, "percentile": 100.0, 'probability "a: 5 %"': 0.0}
    assert len({one["properties"]["classification"]["name"] for one in content["features"]}) == 10


def test_regions_come_back_through_our_reader(frame, tmp_path):
    values = peaks()
    path = tmp_path / "r.geojson"
    assert write_regions(path, frame, values, "attention", color_scale(values), cut=0.93, origin=(300, 400)) == 2
    found = read_annotations(path)
    assert [region.group for region in found.regions] == ["high attention"] * 2
    assert not found.notes
    regions = high_regions(frame, values, 0.93)
    assert [len(tiles) for _, tiles in regions] == [4, 2]
    again = SlideOutlines({"s": path}, path).of_slide("s", frame.size_px, (300, 400))
    back = unary_union([region.shape for region in again])
    assert back.equals(unary_union([shape for shape, _ in regions]))
    assert back.bounds == (300, 500, 1300, 1300)


def test_tiles_are_no_annotations_when_they_are_read(frame, tmp_path):
    write_tiles(tmp_path / "t.geojson", frame, peaks(), "attention", color_scale(peaks()))
    found = read_annotations(tmp_path / "t.geojson")
    assert found.regions == ()
    assert "80" in found.notes[0]


def test_bounds_are_those_of_openslide_where_all_four_are_there():
    slide = OpenSlideImage.__new__(OpenSlideImage)
    bounds = {f"openslide.bounds-{side}": str(value) for side, value in zip("xy", (120, 340), strict=True)}
    slide._slide = type("Slide", (), {"properties": bounds})()
    assert slide.bounds_origin == (0, 0)
    bounds |= {"openslide.bounds-width": "10", "openslide.bounds-height": "10"}
    assert slide.bounds_origin == (120, 340)
    assert ArraySlide(np.zeros((4, 4, 3), np.uint8)).bounds_origin == (0, 0)


def test_what_cannot_be_exported_is_refused(frame, tmp_path):
    values = peaks()
    with pytest.raises(AsmilError, match="s: probability"):
        write_tiles(
            tmp_path / "t.geojson", frame, values, "a", color_scale(values), {"probability": np.full(80, np.inf)}
        )
    with pytest.raises(AsmilError, match="cut"):
        high_regions(frame, values, 1.0)
    assert high_regions(frame, np.full(80, np.nan), 0.5) == []
    assert not (tmp_path / "t.geojson").exists()
