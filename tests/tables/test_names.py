"""Names of slides and patients: none leaves its folder, and spellings of one name are known as such."""

from pathlib import Path

import pytest

from asmil.errors import AsmilError, printable
from asmil.tables.names import file_in, folded, lookalikes, name_problem, spelled, text_problem, without_extension

GOOD = [
    "slide_1",
    "007",
    "a b",
    "TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF-D8FB-45CF-B4BD-C6B76294C291",
    "Präparat 12",
    "切片",
    "..a",
    "a..",
    ".hidden",
    "site/a",
    "-1",
    "+",
    "ab: c",
]
BAD = [
    "../x",
    "../../x",
    "a/../../x",
    "a/..",
    "..",
    ".",
    "/etc/x",
    "a//b",
    "a/",
    "C:\\x",
    "C:x",
    "..\\x",
    "a\x00b",
    "a\x1b[2Jb",
    "a\nb",
    "\u202egnp.a",
    "=1+1",
    "@SUM(A1)",
    "x" * 300,
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_becomes_a_file_in_its_folder(name):
    assert name_problem(name) is None
    assert file_in(Path("out"), name, ".h5") == Path("out") / f"{name}.h5"


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_leaves_its_folder_or_does_harm_is_refused(name):
    assert name_problem(name)
    with pytest.raises(AsmilError) as caught:
        file_in(Path("out"), name, ".h5")
    assert "\x1b" not in str(caught.value)


def test_labels_may_look_like_paths_but_not_like_formulas():
    assert [text for text in ("N/A", "a\\b", "+", "-1", "../x") if text_problem(text)] == []
    assert all(text_problem(text) for text in ("=1", "@x", "a\tb", "\x1b[0m"))


@pytest.mark.parametrize(
    "names",
    [
        ["p1", "P1"],
        ["p1", "p1\u200b"],
        ["p 1", "p\u00a01"],
        ["p 1", "p  1"],
        ["M\u00fcller", "Mu\u0308ller"],
        ["p1", "\uff501"],
        ["p1", "\ufeffp1"],
        ["straße", "STRASSE"],
    ],
)
def test_spellings_of_one_name_are_found_and_can_be_told_apart(names):
    assert lookalikes([*names, "other"]) == [names]
    first, second = spelled(names).split(" and ")
    assert first != second
    assert spelled(names).isprintable()


def test_different_names_stay_different():
    assert lookalikes(["1", "11", "1 1", "a", "b", "ä"]) == []
    assert folded("A") == "a"


def test_only_endings_of_files_are_no_part_of_a_name():
    names = ["a.svs", "a.H5", "a.1", "b.pt", "c.ome.tiff", ".svs", "TCGA.F6E9"]
    assert list(map(without_extension, names)) == ["a", "a", "a.1", "b", "c", ".svs", "TCGA.F6E9"]


def test_messages_never_change_the_terminal():
    message = str(AsmilError("slide \x1b]0;title\x07 \u202e \udcff\nnext"))
    assert message.split("\n")[1] == "next"
    assert all(line.isprintable() for line in message.split("\n"))
    assert printable("plain ä\n\t") == "plain ä\n\t"
