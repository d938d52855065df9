"""Files find their slides by name; what finds none is named."""

import pytest

from asmil.errors import AsmilError
from asmil.slides.annotations import find_annotations


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


@pytest.mark.parametrize(
    ("slide", "name"),
    [
        ("tumor_001", "tumor_001.xml"),
        ("tumor_001", "Tumor_001.xml"),
        ("tumor_001", "tumor_001_mask.tif"),
        ("tumor_001", "Test/tumor_001_evaluation_mask.tif"),
        ("a.1", "a.1.geojson"),
        ("b", "b.ome.tif"),
        ("b", "b_mask.ome.tif"),
        ("c", "c.svs.geojson"),
        ("c.svs", "c.xml"),
        ("c", "c.svs - annotations.json"),
        ("d", "d.geojson.gz"),
        ("d", "d.svs.geojson.zip"),
        ("d.1", "d.1.zip"),
        ("p1_tumor", "p1_tumor_mask.tif"),
        ("mask", "mask.tif"),
    ],
)
def test_a_file_is_called_like_its_slide(tmp_path, slide, name):
    touch(tmp_path, name)
    found = find_annotations(tmp_path, [slide, "another"])
    assert found.by_slide == {slide: tmp_path / name}
    assert found.without_slide == ()


def test_files_without_a_slide_and_slides_with_several(tmp_path):
    touch(
        tmp_path,
        "a.xml",
        "a.geojson",
        "a_mask.tif",
        "b/c.xml",
        "d/c.xml",
        "p1_mask.tif",
        ".hidden.xml",
        "note.txt",
        "e.tif",
    )
    found = find_annotations(tmp_path, ["a", "c", "p1_tumor", "E", "e"])
    assert found.by_slide == {"a": tmp_path / "a.geojson", "e": tmp_path / "e.tif"}
    assert found.beside == {"a": (tmp_path / "a.xml", tmp_path / "a_mask.tif")}
    assert found.clashing == {"c": (tmp_path / "b" / "c.xml", tmp_path / "d" / "c.xml")}
    assert found.without_slide == (tmp_path / "p1_mask.tif",)


def test_a_folder_that_is_not_there_or_holds_nothing(tmp_path):
    with pytest.raises(AsmilError, match="no: the folder"):
        find_annotations(tmp_path / "no", ["a"])
    with pytest.raises(AsmilError, match="no annotation"):
        find_annotations(tmp_path, ["a"])
