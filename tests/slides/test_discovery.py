"""Which slides there are in folders and tables."""

import pandas as pd
import pytest

from asmil.errors import AsmilError
from asmil.slides.discovery import SlideFile, find_slides, read_slide_table
from asmil.slides.opening import open_slide
from shared_data import SHARED_DATA, shared_file


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(place):
    return [slide.name for slide in find_slides(place)]


def refusal(place):
    with pytest.raises(AsmilError) as caught:
        find_slides(place)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_and_its_subfolders(tmp_path):
    touch(*(tmp_path / name for name in ("b.svs", "site/a.SVS", "site/deep/c.v2.ndpi", "d.ome.tiff")))
    touch(*(tmp_path / name for name in ("notes.txt", ".hidden.svs", ".b.svs.7.partial", ".cache/e.svs", "b.png")))
    assert names(tmp_path) == ["a", "b", "c.v2", "d"]
    assert find_slides(tmp_path)[0] == SlideFile("a", tmp_path / "site" / "a.SVS")


def test_companions_belong_to_their_slide(tmp_path):
    touch(*(tmp_path / name for name in ("m.mrxs", "m/Slidedat.ini", "m/thumb.tif", "h.vms", "h(1,0).jpg")))
    assert names(tmp_path) == ["h", "m"]


def test_dicom_folders_are_slides(tmp_path):
    touch(*(tmp_path / "cohort" / name for name in ("one/1.dcm", "one/2.dcm", "two/level.dcm", "c.svs")))
    assert names(tmp_path) == ["c", "one", "two"]
    assert find_slides(tmp_path / "cohort" / "one") == [SlideFile("one", tmp_path / "cohort" / "one")]
    assert names(tmp_path / "cohort" / "one" / "1.dcm") == ["one"]


def test_pictures_count_where_there_is_no_slide(tmp_path):
    touch(tmp_path / "a.png", tmp_path / "b.jpg")
    assert names(tmp_path) == ["a", "b"]
    touch(tmp_path / "c.svs")
    assert names(tmp_path) == ["c"]


def test_linked_folders(tmp_path):
    touch(tmp_path / "store" / "1.2.3" / "level.dcm", tmp_path / "store" / "a.svs")
    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / "site").symlink_to(tmp_path / "store")
    (tmp_path / "slides" / "again").symlink_to(tmp_path / "slides")
    assert names(tmp_path / "slides") == ["1.2.3", "a"]
    (tmp_path / "named").symlink_to(tmp_path / "store" / "1.2.3")
    assert names(tmp_path / "named") == ["named"]


def test_one_file(tmp_path):
    touch(tmp_path / "a.svs")
    assert find_slides(str(tmp_path / "a.svs")) == [SlideFile("a", tmp_path / "a.svs")]


def test_mistakes_in_folders(tmp_path):
    assert ".svs" in refusal(tmp_path)
    touch(tmp_path / "x" / "a.svs", tmp_path / "y" / "a.tif")
    message = refusal(tmp_path)
    for part in ("slide 'a'", str(tmp_path / "x" / "a.svs"), str(tmp_path / "y" / "a.tif")):
        assert part in message
    assert "'x'" in refusal(tmp_path / "xx") or "known are" in refusal(tmp_path / "xx")


def test_a_table(tmp_path):
    touch(tmp_path / "slides" / "007.svs", tmp_path / "slides" / "b.tif", tmp_path / "elsewhere" / "c.svs")
    table = tmp_path / "cohort.csv"
    table.write_text("slide,label,image,mpp\n007,1,,0.25\nb,0,,\nsea,1,elsewhere/c.svs,0.5\n")
    wanted = [
        SlideFile("007", tmp_path / "slides" / "007.svs", 0.25),
        SlideFile("b", tmp_path / "slides" / "b.tif"),
        SlideFile("sea", tmp_path / "elsewhere" / "c.svs", 0.5),
    ]
    assert find_slides(table) == wanted
    parquet = tmp_path / "cohort.parquet"
    rows = {"slide": ["007", "b", "sea"], "image": [None, None, "elsewhere/c.svs"], "mpp": [0.25, None, 0.5]}
    pd.DataFrame(rows).to_parquet(parquet)
    assert find_slides(parquet) == wanted
    table.write_text("slide\nb\n")
    assert find_slides(table) == [SlideFile("b", tmp_path / "slides" / "b.tif")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slides\na\n", "'slides'"),
        ("slide\n", "no rows"),
        ("", "empty"),
        ("slide,mpp\na,\n,1\n", "line 3"),
        ("slide\na\na\n", "slide 'a'"),
        ("slide,mpp\na,fine\n", "slide 'a': mpp 'fine'"),
        ("slide,mpp\na,-1\n", "mpp '-1'"),
    ],
)
def test_mistakes_in_tables(tmp_path, text, message):
    touch(tmp_path / "slides" / "a.svs")
    (tmp_path / "t.csv").write_text(text)
    found = refusal(tmp_path / "t.csv")
    assert message in found
    assert "t.csv" in found


def test_a_slide_that_is_not_there_is_left_for_the_opening_so_that_it_does_not_stop_the_others(tmp_path):
    touch(tmp_path / "slides" / "a.svs")
    (tmp_path / "t.csv").write_text("slide,image\na,\naa,\nb,b.svs\n")
    slides = {slide.name: slide.path for slide in find_slides(tmp_path / "t.csv")}
    assert slides == {
        name: tmp_path / path for name, path in {"a": "slides/a.svs", "aa": "slides/aa", "b": "b.svs"}.items()
    }
    with pytest.raises(AsmilError, match="aa"):
        open_slide(slides["aa"])


def test_a_table_without_images_or_folder(tmp_path):
    (tmp_path / "t.csv").write_text("slide\na\n")
    assert "slide 'a'" in refusal(tmp_path / "t.csv")
    (tmp_path / "u.csv").write_bytes(b"slide\n\x81\n")
    assert "UTF-8" in refusal(tmp_path / "u.csv")


def test_real_slides():
    shared_file(SHARED_DATA / "slides" / "CMU-1-Small-Region.svs")
    found = {slide.name: slide.path for slide in find_slides(SHARED_DATA / "slides")}
    assert {"CMU-1-Small-Region", "CMU-1-Small-Region_dicom", "kidney-48-5", "test3-DAPI-2-387"} <= set(found)
    assert found["CMU-1-Small-Region_dicom"].is_dir()


def test_a_damaged_note_of_pandas_in_a_parquet_table_does_not_matter(tmp_path):
    pd.DataFrame({"slide": ["a", "b"], "mpp": [0.5, None]}).to_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content.replace(b'"numpy_type": "object"', b'"numpy_type": "o`ject"'))
    assert [row.mpp for row in read_slide_table(tmp_path / "t.parquet")] == [0.5, None]
