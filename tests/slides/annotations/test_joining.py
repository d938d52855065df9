"""Tumor of many regions: the same as joining and cutting all of them at once."""

from pathlib import Path

import numpy as np
import pytest
from shapely import union_all
from shapely.geometry import MultiPolygon, Point

from asmil.slides.annotations import AnnotatedRegion, Annotations, tumor_area
from asmil.slides.annotations.regions import area_of


def drawn(seed: int, count: int, spread: float) -> tuple[AnnotatedRegion, ...]:
    draw = np.random.default_rng(seed)
    groups = ["tumor", "tumor", "exclusion", "other"]
    shapes = [Point(*draw.uniform(0, spread, 2)).buffer(draw.uniform(5, 40), quad_segs=3) for _ in range(count)]
    return tuple(
        AnnotatedRegion(groups[draw.integers(4)], MultiPolygon([shape]), bool(draw.random() < 0.1)) for shape in shapes
    )


@pytest.mark.parametrize("spread", [60.0, 300.0, 3000.0])
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_one_union_and_one_difference(seed: int, spread: float):
    regions = drawn(seed, 60, spread)
    found = tumor_area(Annotations(Path("a.geojson"), "geojson", regions))
    cut = [region.shape for region in regions if region.cut_out or region.group == "exclusion"]
    kept = [region.shape for region in regions if not region.cut_out and region.group == "tumor"]
    expected = area_of(union_all(kept).difference(union_all(cut)))
    assert found.shape.is_valid
    assert found.shape.area == pytest.approx(expected.area, rel=1e-9)
    assert found.shape.symmetric_difference(expected).area == pytest.approx(0, abs=1e-6)
    assert len(found.shape.geoms) == len(expected.geoms)
    assert found.tumor["tumor"] == len(kept)
    assert sum(found.cut_out.values()) == len(cut)


def test_regions_are_never_compared(monkeypatch):
    """Comparing each with each is what took minutes; equal regions are counted, not merged."""

    def refuse(self, other):
        raise AssertionError("compared")

    monkeypatch.setattr(AnnotatedRegion, "__eq__", refuse)
    region = drawn(0, 1, 10.0)[0]
    found = tumor_area(Annotations(Path("a.geojson"), "geojson", (AnnotatedRegion("tumor", region.shape),) * 3))
    assert found.tumor["tumor"] == 3


def test_nothing_to_join():
    assert tumor_area(Annotations(Path("a.xml"), "asap", ())).shape.is_empty
