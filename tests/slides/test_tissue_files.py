"""Tissue that is read from outlines and masks."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile

from array_slide import ArraySlide, ellipse, glass
from asmil.errors import AsmilError
from asmil.slides.discovery import SlideFile
from asmil.slides.qc import write_mask
from asmil.slides.settings import TissueConfig
from asmil.slides.tissue.auto import auto_tissue
from asmil.slides.tissue.files import read_tissue, with_tissue_files
from asmil.slides.tissue.geojson import tissue_geojson

CONFIG = TissueConfig(method="files")
SQUARE = [[800, 800], [2400, 800], [2400, 2400], [800, 2400], [800, 800]]
HOLE = [[1200, 1200], [1600, 1200], [1600, 1600], [1200, 1600], [1200, 1200]]
FAR = [[3200, 1600], [3600, 1600], [3600, 2000], [3200, 2000], [3200, 1600]]


class BoundedSlide(ArraySlide):
    """A slide whose scanned part starts elsewhere than at the corner of the image."""

    bounds_origin = (80, 160)


@pytest.fixture(scope="module")
def slide() -> ArraySlide:
    """4000 x 3200 pixels of 1 um, searched at 8 um."""
    pixels = glass()
    ellipse(pixels, (200, 200), (120, 90))
    ellipse(pixels, (420, 320), (40, 30))
    cv2.circle(pixels, (180, 200), 30, (243, 243, 243), cv2.FILLED)
    return ArraySlide(cv2.resize(pixels, None, fx=8, fy=8, interpolation=cv2.INTER_NEAREST), mpp=1.0)


def feature(geometry: dict, **properties: object) -> dict:
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def polygon(*rings: list) -> dict:
    return {"type": "Polygon", "coordinates": list(rings)}


def write(path: Path, *features: dict, **members: object) -> Path:
    path.write_text(json.dumps({"type": "FeatureCollection", **members, "features": list(features)}))
    return path


def share(*areas_px: float) -> float:
    return sum(areas_px) / (4000 * 3200)


def test_outlines_and_masks_that_were_written_give_the_same_tissue(tmp_path, slide):
    tissue = auto_tissue(slide)
    write_mask(tmp_path / "a.png", tissue.mask)
    (tmp_path / "a.geojson").write_text(json.dumps(tissue_geojson(tissue)))
    by_mask, by_outlines = (read_tissue(slide, CONFIG, tmp_path / name) for name in ("a.png", "a.geojson"))
    assert (by_mask.mask == tissue.mask).all()
    assert (by_outlines.mask != tissue.mask).mean() < 0.002
    assert sum(len(region.holes) for region in by_outlines.regions) == 1
    for read in (by_mask, by_outlines):
        assert read.source.automatic_share == tissue.share
        assert read.source.added_share + read.source.removed_share < 0.002
        assert read.notes == ()


@pytest.mark.parametrize("downsample", [4, 8, 20])
@pytest.mark.parametrize("name", ["a.tif", "a.png", "color.png"])
def test_masks_of_any_downsample(tmp_path, slide, name, downsample):
    mask = np.zeros((3200 // downsample, 4000 // downsample), np.uint8)
    mask[800 // downsample : 2400 // downsample, 800 // downsample : 2400 // downsample] = 2
    mask[1200 // downsample : 1600 // downsample, 1200 // downsample : 1600 // downsample] = 1
    if name == "a.tif":
        tifffile.imwrite(tmp_path / name, mask)
    else:
        cv2.imwrite(str(tmp_path / name), mask if name == "a.png" else cv2.merge([mask * 0, mask, mask * 0, mask + 9]))
    assert read_tissue(slide, CONFIG, tmp_path / name).share == pytest.approx(share(1600**2), rel=0.01)


def test_a_mask_that_is_tissue_everywhere_is_noted(tmp_path, slide):
    cv2.imwrite(str(tmp_path / "all.png"), np.full((320, 400), 255, np.uint8))
    (note,) = read_tissue(slide, CONFIG, tmp_path / "all.png").notes
    assert "all.png" in note
    assert "100.0%" in note


def test_pieces_holes_and_excluded_classes(tmp_path, slide):
    both = {"type": "MultiPolygon", "coordinates": [[SQUARE, HOLE], [FAR]]}
    drawn = read_tissue(slide, CONFIG, write(tmp_path / "a.geojson", feature(both, objectType="annotation")))
    assert drawn.share == pytest.approx(share(1600**2, -(400**2), 400**2), rel=0.01)
    assert sorted(len(region.holes) for region in drawn.regions) == [0, 1]
    named = [
        feature(polygon(SQUARE), objectType="annotation", classification={"name": "Tissue", "color": [0, 1, 2]}),
        feature(polygon(FAR), objectType="annotation"),
        feature(polygon(HOLE), objectType="annotation", classification={"name": "Ignore*"}),
        feature(polygon([[0, 0], [99, 0], [0, 99], [0, 0]]), classification={"name": "Tumor"}),
    ]
    edited = read_tissue(slide, CONFIG, write(tmp_path / "b.geojson", *named))
    assert (edited.mask == drawn.mask).all()
    assert any("Tumor" in note for note in edited.notes)


def test_contours_of_trident_count_from_the_corner_and_others_from_the_bounds(tmp_path, slide):
    """As geopandas writes them; outlines that cross themselves become collections with lines."""
    line = {"type": "LineString", "coordinates": [[800, 800], [900, 800]]}
    collection = {"type": "GeometryCollection", "geometries": [polygon(SQUARE, HOLE), line]}
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::3857"}}
    parts = [feature(collection, tissue_id=0), feature(polygon(FAR), tissue_id=1)]
    bounded = BoundedSlide(slide.pixels, mpp=1.0)
    ours = read_tissue(bounded, CONFIG, write(tmp_path / "a.geojson", *parts, name="a", crs=crs))
    assert (ours.source.kind, ours.share) == ("trident", pytest.approx(share(1600**2), rel=0.01))
    assert ours.mask[1000 // 8, 804 // 8]
    moved = read_tissue(bounded, CONFIG, write(tmp_path / "b.geojson", feature(polygon(SQUARE))))
    assert not moved.mask[1000 // 8, 804 // 8]
    assert moved.mask[1000 // 8, 884 // 8]
    written = tissue_geojson(auto_tissue(bounded), bounded.bounds_origin)
    (tmp_path / "c.geojson").write_text(json.dumps(written))
    assert read_tissue(bounded, CONFIG, tmp_path / "c.geojson").source.removed_share < 0.002


FAR_AWAY = feature(polygon([[x + 9000, y] for x, y in SQUARE]))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.geojson", b'{"type": "FeatureCollection", "features": [{"type": "Fea', "damaged"),
        ("a.geojson", b"", "empty"),
        ("a.geojson", json.dumps({"type": "FeatureCollection", "features": []}).encode(), "no outline"),
        ("a.geojson", json.dumps(feature(polygon([[5, 5], [9, 9]]))).encode(), "no outline"),
        ("a.geojson", json.dumps(FAR_AWAY).encode(), "outside.*4000 x 3200"),
        ("a.png", b"\x89PNG", "decoded"),
        ("a.png", cv2.imencode(".png", np.ones((80, 300), np.uint8))[1].tobytes(), "300 x 80.*4000 x 3200"),
        ("a.png", cv2.imencode(".png", np.zeros((80, 100), np.uint8))[1].tobytes(), "no tissue"),
        ("a.png", b"", "decoded"),
        ("a.tif", b"II*\0", "mask"),
    ],
)
def test_bad_files_are_named(tmp_path, slide, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AsmilError, match=f"{name}.*{words}"):
        read_tissue(slide, CONFIG, tmp_path / name)


def test_a_file_of_another_level_is_noted(tmp_path, slide):
    small = [[x / 8, y / 8] for x, y in SQUARE]
    notes = read_tissue(slide, CONFIG, write(tmp_path / "a.geojson", feature(polygon(small)))).notes
    assert any("a.geojson" in note and "0%" in note for note in notes)


def test_files_are_assigned_to_slides_by_name(tmp_path):
    slides = [SlideFile(name, Path(f"{name}.svs")) for name in ("a", "b", "c")]
    for name in ("contours/a.geojson", "masks/a.png", "b_mask.tif"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assigned, notes = with_tissue_files(slides, tmp_path)
    assert [slide.tissue and slide.tissue.name for slide in assigned] == ["a.geojson", "b_mask.tif", None]
    assert len(notes) == 1
    assert "a.png" in notes[0]
    (tmp_path / "a.geojson").touch()
    with pytest.raises(AsmilError, match=r"slide a .*a\.geojson.*a\.geojson"):
        with_tissue_files(slides, tmp_path)
    with pytest.raises(AsmilError, match="b_mask"):
        with_tissue_files(slides[:1], tmp_path / "b_mask.tif")
