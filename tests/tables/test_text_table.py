"""Tables as text, and the meaning of their columns."""

import random
import zipfile
from contextlib import suppress

import openpyxl
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from asmil.errors import AsmilError
from asmil.tables.columns import understand_columns
from asmil.tables.text_table import read_text_table


def read(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return understand_columns(path, read_text_table(path))


def test_quotes_blanks_short_rows_and_the_numbers_of_pandas(tmp_path):
    found = read(tmp_path, '\ufeff,slide , note\n0,a , "x, y"\n\n1,"b ""c"""\n')
    assert found.cells == {"slide": ["a", 'b "c"'], "note": ["x, y", ""]}
    assert found.rows[1] == {"slide": 'b "c"', "note": ""}


@pytest.mark.parametrize("text", ["", "\n", "slide\n", 'slide\n"a\n', "slide\na,b\n", 'slide,x\n"a"b,1\n'])
def test_what_is_no_table_is_refused(tmp_path, text):
    with pytest.raises(AsmilError, match=r"t\.csv"):
        read(tmp_path, text)


def test_parquet_cells_are_text(tmp_path):
    path = tmp_path / "t.parquet"
    table = pd.DataFrame({"slide": ["007", "b"], "n": [1.0, None], "m": [3, 4]}).set_index("slide")
    table.to_parquet(path)
    found = read_text_table(path)
    assert dict(zip(found.names, found.cells, strict=True)) == {"slide": ["007", "b"], "n": ["1", ""], "m": ["3", "4"]}
    parquet.write_table(pyarrow.table({"slide": [b"a"]}), path)
    assert read_text_table(path).cells == (["a"],)


def test_damaged_parquet_files_end_in_one_sentence(tmp_path):
    whole = tmp_path / "whole.parquet"
    pd.DataFrame({"slide": list("abcdef"), "label": [0, 1] * 3, "mpp": [0.5] * 6}).to_parquet(whole)
    draw, content, path = random.Random(0), whole.read_bytes(), tmp_path / "t.parquet"
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        with suppress(AsmilError):
            understand_columns(path, read_text_table(path))


@pytest.mark.parametrize("second", ["label", " label", "Label", "\ufefflabel", "LABEL ", "l\u200babel"])
def test_two_columns_of_one_name_are_refused(tmp_path, second):
    with pytest.raises(AsmilError, match=r"t\.csv.*label") as caught:
        read(tmp_path, f"slide,label,{second}\na,0,1\n")
    assert ascii(second) in str(caught.value) or "'label'" in str(caught.value)


def test_two_unused_columns_of_one_name_do_no_harm(tmp_path):
    assert read(tmp_path, "slide,note,Note\na,0,1\n").cells["note"] == ["0"]


@pytest.mark.parametrize(
    "header",
    [
        "case_id,slide_id",
        "PATIENT,FILENAME",
        "Case ID,Slide ID",
        "patientId,slide",
        "submitter_id,file_name",
        "Case,WSI",
    ],
)
def test_spellings_of_other_tools_are_understood(tmp_path, header):
    found = read(tmp_path, f"{header},label\np,s,0\n")
    assert (found.cells["patient"], found.cells["slide"], found.cells["label"]) == (["p"], ["s"], ["0"])


def test_file_names_lose_their_ending_and_slide_names_keep_it(tmp_path):
    assert read(tmp_path, "FILENAME\nsub/a.1.h5\n").cells["slide"] == ["sub/a.1"]
    assert read(tmp_path, "slide\na.svs\n").cells["slide"] == ["a.svs"]
    found = read(tmp_path, "image,label\n/data/a.svs,0\n").cells
    assert (found["slide"], found["image"]) == (["a"], ["/data/a.svs"])


def test_columns_that_disagree_are_named(tmp_path):
    for text, names in [
        ("slide_id,filename\na,a.svs\nb,c.svs\n", ("slide_id", "filename", "line 3")),
        ("slide,case_id,subject\na,p,q\nb,p,r\n", ("case_id", "subject", "line 3")),
        ("slide,patient,case_id\na,p,c\nb,q,c\nc,r,d\n", ("patient", "case_id", "line 3")),
    ]:
        with pytest.raises(AsmilError) as caught:
            read(tmp_path, text)
        assert all(name in str(caught.value) for name in names)


def test_columns_that_agree_in_their_own_words_are_fine(tmp_path):
    assert read(tmp_path, "slide_id,filename\na,x/a.svs\n").cells["slide"] == ["a"]
    assert read(tmp_path, "slide,filename\na,b.svs\n").cells["slide"] == ["a"]
    found = read(tmp_path, "slide,case_id,case_submitter_id\na,7,TCGA-1\nb,8,TCGA-2\nc,7,TCGA-1\n")
    assert found.cells["patient"] == ["7", "8", "7"]
    # said to be independent, or joined further than the other column does
    assert read(tmp_path, "slide,patient,case_id\na,a,c\nb,b,c\n").cells["patient"] == ["a", "b"]
    assert read(tmp_path, "slide,patient,case_id\na,p,c\nb,p,d\n").cells["patient"] == ["p", "p"]


def write_book(path, cells=(), **sheets):
    """An Excel file with a table of three slides, more cells (`A1`, value) on its sheet, and more sheets."""
    book = openpyxl.Workbook()
    for row in [("slide", "label"), ("a", 0), ("b", 1), ("c", 0)]:
        book.active.append(row)
    for place, value in cells:
        book.active[place] = value
    for name, rows in sheets.items():
        for row in rows:
            (book[name] if name in book.sheetnames else book.create_sheet(name)).append(row)
    book.save(path)
    return path


@pytest.mark.parametrize("place", ["XFD1048576", "A1048576", "XFD2", "XFD1"])
def test_a_stray_cell_of_an_excel_sheet_adds_no_empty_rows(tmp_path, place):
    path = write_book(tmp_path / "t.xlsx", [(place, "x")])
    found = read_text_table(path)
    assert found.names[:2] == ("slide", "label")
    assert found.cells[0][:3] == ["a", "b", "c"]
    # the one in the first column is a slide without a label, the one under no header is left out with a note
    assert len(found.cells[0]) == (4 if place == "A1048576" else 3)
    assert bool(found.notes) == (place in ("XFD1048576", "XFD2"))


def test_a_row_beyond_the_last_of_excel_is_refused(tmp_path):
    path = write_book(tmp_path / "t.xlsx")
    with zipfile.ZipFile(path) as book:
        members = {name: book.read(name) for name in book.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    members[sheet] = members[sheet].replace(b'<row r="4"', b'<row r="40000000000"')
    with zipfile.ZipFile(path, "w") as book:
        for name, content in members.items():
            book.writestr(name, content)
    with pytest.raises(AsmilError, match=r"t\.xlsx.*1048576"):
        read_text_table(path)


def test_one_of_several_sheets_is_chosen_by_name(tmp_path):
    path = write_book(tmp_path / "t.xlsx", people=[("patient", "age"), ("p", 60)], notes=[("only a title",)])
    with pytest.raises(AsmilError, match=r"Sheet.*people.*--sheet"):
        read_text_table(path)
    assert read_text_table(path, "people").names == ("patient", "age")
    for wrong in ("notes", "People"):
        with pytest.raises(AsmilError, match=rf"{wrong}.*Sheet.*people"):
            read_text_table(path, wrong)
    (tmp_path / "t.csv").write_text("slide\na\n")
    with pytest.raises(AsmilError, match=r"t\.csv.*people"):
        read_text_table(tmp_path / "t.csv", "people")


def test_damaged_excel_files_end_in_one_sentence(tmp_path):
    path = write_book(tmp_path / "t.xlsx")
    draw, content = random.Random(0), path.read_bytes()
    refused = []
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read_text_table(path)
        except AsmilError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all("t.xlsx" in message for message in refused)


def test_text_of_old_windows_whose_only_letters_beyond_ascii_are_spaces(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("slide,time\na\xa0,1\n".encode("latin-1"))
    found = understand_columns(path, read_text_table(path))
    assert found.cells["slide"] == ["a"]
    assert len(found.notes) == 1


SPACES = ["\u00a0", "\u2007", "\u2009", "\u202f", "\u3000"]
NO_WIDTH = ["\u00ad", "\u200b", "\u200e", "\u2060", "\ufeff"]


@pytest.mark.parametrize("letter", [*SPACES, *NO_WIDTH])
@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_every_kind_of_space_is_a_blank(tmp_path, letter, suffix):
    path = tmp_path / f"t{suffix}"
    between = letter if letter in SPACES else f" {letter}"
    table = pd.DataFrame(
        {
            f"slide{letter}": ["a", f"b{letter}"],
            f"sub{between}type": [f"small{between}cell", f"{letter}x"],
            "features": [f"a{between}1.h5", "b.h5"],
        }
    )
    if suffix == ".csv":
        table.to_csv(path, index=False)
    elif suffix == ".xlsx":
        table.to_excel(path, index=False)
    else:
        table.to_parquet(path, index=False)
    found = understand_columns(path, read_text_table(path), {"label": "sub type"})
    assert found.cells["slide"] == ["a", "b"]
    assert found.cells["label"] == ["small cell", "x"]
    assert found.cells["features"][0] == f"a{between}1.h5"  # files are called as they are called


def test_categories_of_parquet_are_text(tmp_path):
    path = tmp_path / "t.parquet"
    table = pd.DataFrame({"slide": ["a", "b", "c"], "label": ["x", None, "x"], "n": [1, 2, 1]})
    table.astype("category").to_parquet(path)
    assert read_text_table(path).cells == (["a", "b", "c"], ["x", "", "x"], ["1", "2", "1"])
