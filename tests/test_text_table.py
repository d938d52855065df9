"""Tables as text, and the meaning of their columns."""

import random
from contextlib import suppress

import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from asmil.columns import understand_columns
from asmil.errors import AsmilError
from asmil.text_table import read_text_table


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
