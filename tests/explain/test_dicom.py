"""DICOM output, read back by pydicom alone: values, positions, references and numbers of the report."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from shapely.geometry import MultiPolygon, Polygon, box

import asmil
from array_slide import ArraySlide
from asmil import AsmilError
from asmil.explain.asked_slides import AskedSlide
from asmil.explain.caveats import Caveats
from asmil.explain.slide_maps import SlideMaps, SlidePrediction
from asmil.explain.tile_map import SlideFrame, TileMap
from asmil.slides.annotations import AnnotatedRegion
from asmil.slides.opening import open_slide
from shared_data import SHARED_DATA, shared_file

needs_highdicom = pytest.mark.skipif(
    importlib.util.find_spec("highdicom") is None, reason="highdicom is not installed: pip install 'asmil[dicom]'"
)
TILE, SIZE = 100, (1300, 1000)
DICOM_SLIDE = SHARED_DATA / "slides" / "CMU-1-Small-Region_dicom" / "1.dcm"


def read(path: Path) -> Any:
    from pydicom import dcmread

    return dcmread(path)


def centers_mm(image: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Slide coordinates of pixels in columns x and rows y of a whole matrix, counted from 0 (PS3.3, C.7.6.2.1.1)."""
    origin, measures = image.TotalPixelMatrixOriginSequence[0], image.SharedFunctionalGroupsSequence[0]
    down, right = map(float, measures.PixelMeasuresSequence[0].PixelSpacing)
    rows, columns = np.array(image.ImageOrientationSlide, dtype=float).reshape(2, 3)
    start = [origin.XOffsetInSlideCoordinateSystem, origin.YOffsetInSlideCoordinateSystem]
    return np.array([*map(float, start), 0.0]) + np.outer(x * right, rows) + np.outer(y * down, columns)


def polygons(group: Any) -> list[np.ndarray]:
    points = np.frombuffer(group.PointCoordinatesData, np.float32).reshape(-1, 2)
    starts = (np.frombuffer(group.LongPrimitivePointIndexList, np.int32) - 1) // 2
    return np.split(points, starts[1:])


def content_items(item: Any) -> list[Any]:
    return [item, *(below for part in item.get("ContentSequence", []) for below in content_items(part))]


@pytest.mark.heavy
@needs_highdicom
def test_files_of_a_slide_that_is_not_dicom(tmp_path):
    from asmil.explain.dicom.source_image import source_image
    from asmil.explain.dicom.writing import write_dicom

    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(10) * TILE + 200, np.arange(6) * TILE + 300))
    keep = np.arange(60) != 33
    coords, values = np.stack([x, y], axis=1)[keep], np.linspace(-0.25, 0.9, 59)
    values[7] = np.nan
    frame = SlideFrame("s", coords, float(TILE), SIZE, 0.5)
    image = ArraySlide(np.full((SIZE[1], SIZE[0], 3), 200, np.uint8), 0.5)
    hole = box(400, 400, 800, 800).difference(box(500, 500, 600, 600))
    predicted = SlidePrediction("p", {"normal": np.array([0.2, 0.4]), "tumor": np.array([0.8, 0.6])}, "tumor", "text")
    maps = SlideMaps(coords, None, (TileMap(values, "gradient"),), "about", prediction=predicted)
    regions, caveats = [AnnotatedRegion("tumor", MultiPolygon([hole]))], Caveats(("an alarm.",), ("a note",))
    given = (tmp_path, AskedSlide("s", None, None), frame, image, maps, "abmil", 0.9, regions, caveats)
    overview, written, drawn, report = map(read, write_dicom(*given))

    for other in (written, drawn, report):
        assert other.StudyInstanceUID == overview.StudyInstanceUID
        assert overview.SOPInstanceUID in str(other), "all refer to the overview"
        assert "an alarm." in str(other.to_json())
    assert written.FrameOfReferenceUID == overview.FrameOfReferenceUID
    assert len({each.SOPInstanceUID for each in (overview, written, drawn, report)}) == 4
    again = source_image(frame, None, image).dataset
    assert again.FrameOfReferenceUID == overview.FrameOfReferenceUID

    # the center of a tile is at the same place of the slide in the overview and in the map
    grid = np.frombuffer(written.FloatPixelData, np.float32).reshape(6, 10)
    rows, columns = np.divmod(np.flatnonzero(keep), 10)
    stored = np.where(grid == written.FloatPixelPaddingValue, np.nan, grid)
    np.testing.assert_allclose(stored[rows, columns], values, rtol=1e-6)
    assert np.isnan(stored[3, 3])
    mapping, window = (
        written.SharedFunctionalGroupsSequence[0][name][0]
        for name in ("RealWorldValueMappingSequence", "FrameVOILUTSequence")
    )
    assert (window.VOILUTFunction, float(window.WindowWidth)) == ("LINEAR_EXACT", pytest.approx(1.15))
    assert mapping.DoubleFloatRealWorldValueFirstValueMapped == pytest.approx(np.nanmin(values))
    in_overview = (coords + TILE / 2) * (overview.TotalPixelMatrixColumns / SIZE[0]) - 0.5
    np.testing.assert_allclose(
        centers_mm(written, columns, rows), centers_mm(overview, *in_overview.T), atol=0.5e-3, rtol=0
    )

    tiles, outlines = drawn.AnnotationGroupSequence
    corners = [polygon[0] * SIZE[0] / overview.TotalPixelMatrixColumns for polygon in polygons(tiles)]
    highest = np.flatnonzero(values > np.nanquantile(values, 0.9))
    np.testing.assert_allclose(corners, coords[highest], atol=1e-2)
    numbers = tiles.MeasurementsSequence[0].MeasurementValuesSequence[0].FloatingPointValues
    np.testing.assert_allclose(np.frombuffer(numbers, np.float32), values[highest], rtol=1e-6)
    assert sum(Polygon(ring).area for ring in polygons(outlines)) == pytest.approx(hole.area, rel=1e-4)

    found = content_items(report)
    measured = {
        (item.ConceptNameCodeSequence[0].CodeMeaning, float(item.MeasuredValueSequence[0].NumericValue))
        for item in found
        if item.get("ValueType") == "NUM"
    }
    assert measured >= {("Probability of tumor", 0.7), ("Probability of tumor", 0.6), ("Probability of tumor", 0.8)}
    assert any("tumor" in str(item.get("ConceptCodeSequence", "")) for item in found)


@pytest.mark.heavy
@needs_highdicom
def test_results_of_a_dicom_slide_join_its_study(tmp_path):
    folder, scores = tmp_path / "slide", tmp_path / "scores.csv"
    shutil.copytree(shared_file(DICOM_SLIDE).parent, folder)
    pd.DataFrame({"x": [0, 500, 1000], "y": [0, 500, 500], "score": [0.1, 0.9, 0.5]}).to_csv(scores, index=False)
    asmil.heatmap((), folder, tmp_path / "maps", scores=scores, tile_px=500, dicom=True, progress=False)
    written = {path.stem: read(path) for path in (tmp_path / "maps").glob("*.dcm")}
    assert set(written) == {"slide_map", "slide_annotations"}
    slide, tile_map = read(folder / "1.dcm"), written["slide_map"]
    for name in ("StudyInstanceUID", "PatientID", "ContainerIdentifier"):
        assert all(each[name].value == slide[name].value for each in written.values())
    assert tile_map.FrameOfReferenceUID == slide.FrameOfReferenceUID
    grid = np.frombuffer(tile_map.FloatPixelData, np.float32).reshape(2, 3)
    np.testing.assert_allclose(grid[[0, 1, 1], [0, 1, 2]], [0.1, 0.9, 0.5], rtol=1e-6)
    tile_centers = np.array([[250, 750, 1250], [250, 750, 750]]) - 0.5
    shown = centers_mm(tile_map, np.array([0, 1, 2]), np.array([0, 1, 1]))
    np.testing.assert_allclose(shown, centers_mm(slide, *tile_centers), atol=1e-5, rtol=0)

    for path in (tmp_path / "maps").glob("*.dcm"):
        shutil.copy(path, folder)
    with open_slide(folder) as opened:
        assert opened.size == (slide.TotalPixelMatrixColumns, slide.TotalPixelMatrixRows)


@needs_highdicom
def test_dicom_needs_the_resolution_and_the_full_level(tmp_path):
    from asmil.explain.dicom.source_image import source_image

    frame = SlideFrame("s", np.zeros((1, 2), np.int64), 100.0, (300, 300))
    with pytest.raises(AsmilError, match=r"s: .*--mpp"):
        source_image(frame, None, None)
    with pytest.raises(AsmilError, match=r"s: .*300 x 300"):
        source_image(frame, tmp_path, None)


def test_without_highdicom_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(AsmilError, match=r"asmil\[dicom\]"):
        asmil.heatmap(tmp_path, out=tmp_path / "maps", dicom=True)
