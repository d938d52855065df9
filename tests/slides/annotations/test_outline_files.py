"""Reading outlines: every format, what tools leave in them, and what is broken."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import shapely

from asmil.errors import AsmilError
from asmil.slides.annotations import ClassNames, read_annotations, tumor_area
from asmil.slides.annotations.writing import write_asap, write_geojson
from asmil.slides.tissue.regions import Region
from shared_data import SHARED_DATA, shared_file

SQUARE = [(0, 0), (100, 0), (100, 100), (0, 100)]
INNER = [(40, 40), (60, 40), (60, 60), (40, 60)]


def asap(path: Path, *annotations: tuple[str, str, list[tuple[float, float]]]) -> Path:
    """An ASAP file of (type, group, points)."""
    body = "".join(
        f'<Annotation Name="a" Type="{kind}" PartOfGroup="{group}"><Coordinates>'
        + "".join(f'<Coordinate Order="{order}" X="{x}" Y="{y}"/>' for order, (x, y) in enumerate(points))
        + "</Coordinates></Annotation>"
        for kind, group, points in annotations
    )
    path.write_text(f"<ASAP_Annotations><Annotations>{body}</Annotations></ASAP_Annotations>")
    return path


def feature(points: list[tuple[float, float]], name: str | None = None, **properties: object) -> dict[str, object]:
    classification = {} if name is None else {"classification": {"name": name, "color": [200, 0, 0]}}
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [[*points, points[0]]]},
        "properties": {"objectType": "annotation", "isLocked": False, **classification, **properties},
    }


def geojson(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_asap_groups_are_joined_and_exclusions_cut_out(tmp_path):
    path = asap(
        tmp_path / "s.xml",
        ("Polygon", "Tumor", SQUARE),
        ("Spline", "_1", [(50, 50), (150, 50), (150, 100), (50, 100)]),
        ("Rectangle", "Exclusion", INNER),
        ("Polygon", "Lymphocytes", SQUARE),
        ("Dot", "Tumor", [(5, 5)]),
    )
    annotations = read_annotations(path)
    assert annotations.kind == "asap"
    (note,) = annotations.notes
    assert re.search("1 annotation .*Dot", note)
    area = tumor_area(annotations)
    assert area.shape.area == pytest.approx(100 * 100 + 50 * 50 - 20 * 20)
    assert area.tumor == Counter({"Tumor": 1, "_1": 1})
    assert area.cut_out == {"Exclusion": 1}
    assert area.unknown == {"Lymphocytes": 1}


def test_asap_points_are_taken_by_their_order(tmp_path):
    mixed = [(2, 100, 100), (0, 0, 0), (3, 0, 100), (1, 100, 0), (10, 0, 50)]
    points = "".join(f'<Coordinate Order="{order}" X="{x}" Y="{y},0"/>' for order, x, y in mixed)
    (tmp_path / "s.xml").write_text(
        f'<ASAP_Annotations><Annotations><Annotation Type="Polygon" PartOfGroup="None"><Coordinates>{points}'
        "</Coordinates></Annotation></Annotations></ASAP_Annotations>"
    )
    annotations = read_annotations(tmp_path / "s.xml")
    assert annotations.notes == ()
    assert tumor_area(annotations).shape.area == pytest.approx(10_000)


def test_camelyon17_paints_normal_over_metastases(tmp_path):
    path = asap(tmp_path / "s.xml", ("Polygon", "metastases", SQUARE), ("Polygon", "normal", INNER))
    assert tumor_area(read_annotations(path)).shape.area == pytest.approx(9600)
    drawn = [feature(SQUARE, "Tumor"), feature(INNER, "Normal")]
    other = tumor_area(read_annotations(geojson(tmp_path / "s.geojson", drawn)))
    assert other.shape.area == pytest.approx(10_000)
    assert other.unknown == {"Normal": 1}


def test_names_of_the_user_take_the_place_of_the_usual_ones(tmp_path):
    path = asap(tmp_path / "s.xml", ("Polygon", "Tumor", INNER), ("Polygon", "DCIS", SQUARE), ("Polygon", "Fat", INNER))
    area = tumor_area(read_annotations(path), ClassNames(tumor=["dcis"], exclude=["FAT"]))
    assert area.shape.area == pytest.approx(9600)
    assert area.unknown == {"Tumor": 1}


def test_regions_without_a_class_are_tumor_only_if_all_are(tmp_path):
    path = asap(tmp_path / "s.xml", ("Polygon", "None", SQUARE), ("Polygon", "Exclusion", INNER))
    assert tumor_area(read_annotations(path)).shape.area == pytest.approx(9600)
    path = asap(tmp_path / "s.xml", ("Polygon", "None", SQUARE), ("Polygon", "Tumor", INNER))
    area = tumor_area(read_annotations(path))
    assert area.shape.area == pytest.approx(400)
    assert area.unknown == {"(no class)": 1}


@pytest.mark.parametrize(
    "wrap", [lambda one: {"type": "FeatureCollection", "features": [one]}, lambda one: [one], dict]
)
def test_geojson_as_collection_array_or_single_feature(tmp_path, wrap):
    annotations = read_annotations(geojson(tmp_path / "s.geojson", wrap(feature(SQUARE, "tumour", unknown=1))))
    assert [region.group for region in annotations.regions] == ["tumour"]
    assert tumor_area(annotations).shape.area == pytest.approx(10_000)


def test_geojson_multipolygons_holes_cells_and_lines(tmp_path):
    two = [[[*SQUARE, SQUARE[0]], [*INNER, INNER[0]]], [[(200, 0), (210, 0), (210, 10), (200, 0)]]]
    several = {"type": "Feature", "geometry": {"type": "MultiPolygon", "coordinates": two}, "properties": {}}
    line = {"type": "Feature", "geometry": {"type": "LineString", "coordinates": SQUARE}, "properties": None}
    cells = [feature(INNER, "Tumor", objectType="cell") for _ in range(3)]
    annotations = read_annotations(geojson(tmp_path / "s.json", [several, line, *cells]))
    assert tumor_area(annotations).shape.area == pytest.approx(9600 + 50)
    lines, left_out = annotations.notes
    assert re.search("1 annotation .*LineString", lines)
    assert re.search("3 annotations .*cell", left_out)


def test_aperio_layers_with_negative_regions(tmp_path):
    def region(points, negative):
        vertices = "".join(f'<Vertex X="{x}" Y="{y}"/>' for x, y in points)
        return f'<Region NegativeROA="{negative}"><Vertices>{vertices}</Vertices></Region>'

    def layer(number, attribute, *regions):
        return (
            f'<Annotation Id="{number}" Name=""><Attributes>{attribute}</Attributes>'
            f"<Regions>{''.join(regions)}</Regions></Annotation>"
        )

    path = tmp_path / "s.xml"
    first = layer(1, '<Attribute Name="CaP" Value=""/>', region(SQUARE, 0), region(INNER, 1), region(SQUARE[:2], 0))
    second = layer(2, '<Attribute Name="Description" Value=""/>', region([(200, 0), (210, 0), (210, 10)], 0))
    path.write_text(f'<Annotations MicronsPerPixel="0.25">{first}{second}</Annotations>')
    annotations = read_annotations(path)
    (note,) = annotations.notes
    assert re.search("1 annotation .*points", note)
    assert tumor_area(annotations).shape.area == pytest.approx(9600 + 50)
    assert tumor_area(annotations, ClassNames(tumor=["layer 2"])).shape.area == pytest.approx(50)


def test_ncrf_lists_of_vertices(tmp_path):
    value = {"positive": [{"name": "a", "vertices": SQUARE}], "negative": [{"name": "b", "vertices": INNER}]}
    annotations = read_annotations(geojson(tmp_path / "s.json", value))
    assert annotations.kind == "ncrf"
    assert tumor_area(annotations).shape.area == pytest.approx(9600)


def test_an_outline_that_crosses_itself_is_repaired(tmp_path):
    path = geojson(tmp_path / "s.geojson", feature([(0, 0), (100, 100), (100, 0), (0, 100)]))
    annotations = read_annotations(path)
    assert len(annotations.notes) == 1
    assert annotations.notes[0].startswith("1 annotation")
    assert tumor_area(annotations).shape.area == pytest.approx(5000)


def tangle(points: int, seed: int = 0) -> list[tuple[float, float]]:
    """An outline from one random point to the next."""
    return [tuple(point) for point in np.random.default_rng(seed).integers(0, 1000, (points, 2)).tolist()]


def test_an_outline_that_crosses_itself_dozens_of_times_is_repaired(tmp_path):
    angle = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    loops = 1000 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    loops += 60 * np.stack([np.cos(50 * angle), np.sin(50 * angle)], axis=1)
    annotations = read_annotations(geojson(tmp_path / "s.geojson", feature(loops.tolist())))
    assert len(annotations.notes) == 1
    (region,) = annotations.regions
    assert region.shape.is_valid
    assert region.shape.area == pytest.approx(shapely.make_valid(shapely.Polygon(loops)).area)
    corners = 2 * np.pi * np.arange(0, 14, 2) / 7
    star = 100 * np.stack([np.cos(corners), np.sin(corners)], axis=1)  # crosses itself seven times
    many = geojson(tmp_path / "many.geojson", [feature(star.tolist())] * 750)
    assert len(read_annotations(many).regions) == 750


@pytest.mark.parametrize("write", ["asap", "geojson"])
def test_an_outline_that_crosses_itself_thousands_of_times_is_refused_by_number(write, tmp_path):
    if write == "asap":
        path = asap(tmp_path / "s7.xml", ("Polygon", "Tumor", SQUARE), ("Polygon", "Lesion", tangle(800)))
    else:
        path = geojson(tmp_path / "s7.geojson", [feature(SQUARE, "Tumor"), feature(tangle(800), "Lesion")])
    with pytest.raises(AsmilError, match=rf"{path.name}: outline 2 \(Lesion"):
        read_annotations(path)


def test_many_outlines_that_each_cross_themselves_are_refused_together(tmp_path):
    path = geojson(tmp_path / "s7.geojson", [feature(tangle(50, seed), "Tumor") for seed in range(100)])
    with pytest.raises(AsmilError, match=r"s7\.geojson: outline \d\d "):
        read_annotations(path)


def test_what_asmil_writes_it_reads(tmp_path):
    regions = [Region(np.array(SQUARE, np.int32), (np.array(INNER, np.int32),))]
    write_asap(tmp_path / "s.xml", regions, "tumor")
    write_geojson(tmp_path / "s.geojson", regions, "tumor")
    areas = [tumor_area(read_annotations(tmp_path / f"s.{kind}")).shape for kind in ("xml", "geojson")]
    assert areas[0].equals(areas[1])
    assert areas[0].area == pytest.approx(9600)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("s.xml", "", "is empty"),
        ("s.xml", "<ASAP_Annotations><Annotations>", "XML"),
        ("s.xml", "<svg/>", "<svg>"),
        (
            "s.xml",
            '<ASAP_Annotations><Annotation Type="Polygon"><Coordinate Order="0" X="a" Y="1"/></Annotation>'
            "</ASAP_Annotations>",
            "X = 'a'",
        ),
        ("s.geojson", '{"type": "Feat', "JSON"),
        ("s.geojson", '{"type": "Topology"}', "neither GeoJSON features"),
        ("s.geojson", "3", "neither GeoJSON features"),
        ("s.geojson", '[{"type": "Feature"}]', "neither GeoJSON features"),
        ("s.json", '{"positive": [{"vertices": [["x", 1]]}]}', "neither GeoJSON features"),
        ("s.txt", "0 0", ".geojson"),
    ],
)
def test_broken_files_are_told_in_one_sentence(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(AsmilError, match=told) as error:
        read_annotations(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_but_whole_file_has_no_regions(tmp_path):
    annotations = read_annotations(geojson(tmp_path / "s.geojson", {"type": "FeatureCollection", "features": []}))
    assert annotations.regions == ()
    assert tumor_area(annotations).shape.is_empty


def test_real_files_have_the_areas_that_their_tools_noted():
    folder = SHARED_DATA / "slides" / "annotations"
    aperio = read_annotations(shared_file(folder / "aperio_TCGA-EJ-5518.xml"))
    assert {region.group for region in aperio.regions} == {"CaP", "layer 3", "layer 4"}
    assert aperio.regions[0].shape.area == pytest.approx(29046449.6, rel=1e-4)
    assert aperio.regions[1].shape.area == pytest.approx(641099844.1, rel=1e-4)
    ncrf = tumor_area(read_annotations(shared_file(folder / "camelyon16_Tumor_110_ncrf.json")))
    assert ncrf.tumor == {"positive": 21}
    assert ncrf.cut_out == {"negative": 18}
    assert len(read_annotations(shared_file(folder / "asap-polygon.xml")).regions) == 1
    (holed,) = read_annotations(shared_file(folder / "holed.geojson")).regions[0].shape.geoms
    assert len(holed.interiors) == 1


@pytest.mark.parametrize(
    "ring",
    ["[1, 2, 3]", "[[1], [2], [3]]", "[[[0, 0], [1, 1]]]", "[[0, 0], [1e300, 0], [5, 5]]", "[[0, 0], [NaN, 1], [2, 2]]",
     "[[0, 0], [1" + "0" * 400 + ", 0], [5, 5]]", "3", "[null, 1]"],
)  # fmt: skip
def test_outlines_that_are_none_are_refused(tmp_path, ring: str):
    path = tmp_path / "odd.geojson"
    path.write_text(f'{{"type": "Polygon", "coordinates": [{ring}]}}')
    with pytest.raises(AsmilError, match=r"odd\.geojson"):
        read_annotations(path)
    path = tmp_path / "odd.json"
    path.write_text(f'{{"positive": [{{"vertices": {ring}}}]}}')
    with pytest.raises(AsmilError, match=r"odd\.json"):
        read_annotations(path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 50_000, '{"type": ' + "1" * 5000 + "}", "3", '"x"'])
def test_json_that_no_tool_wrote_is_refused(tmp_path, content: str):
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(AsmilError, match=r"odd\.json"):
        read_annotations(path)


@pytest.mark.parametrize("encoding", ["utf-32", "no-such-thing", "idna"])
def test_xml_in_an_encoding_that_is_none_is_refused(tmp_path, encoding: str):
    path = tmp_path / "odd.xml"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?><ASAP_Annotations/>'.encode())
    with pytest.raises(AsmilError, match=r"odd\.xml"):
        read_annotations(path)
