"""Documents and tables in every output: nothing is lost, everything is escaped."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from asmil.reporting import (
    Cell,
    Document,
    Estimate,
    Figure,
    Folded,
    Interval,
    Note,
    Section,
    SideBySide,
    Table,
    csv_text,
    estimate_cell,
    jsonable,
    latex_document,
    markdown_document,
    print_document,
    settings_table,
)
from asmil.reporting.page import html_document
from parsed_page import Page

NASTY = '<script>alert("x")</script> | $a_b$ & 50 %'
SCORE = Estimate(0.8125, Interval(0.7, 0.9), per_seed={0: 0.8, 1: 0.825})


@pytest.fixture
def document() -> Document:
    table = Table(
        ["run", "AUC", "hidden", NASTY],
        [[Cell(NASTY, ("a note",)), estimate_cell(SCORE, ("seeds", SCORE.sd_seeds), (0, 1), strong=True), "7", NASTY]],
        in_terminal=True,
        narrow=frozenset({"hidden"}),
    )
    folded = Folded("More", [Table(["setting", "value"], [["secret", "42"]])])
    blocks = ["Use `asmil compare`.", Note("careful"), SideBySide([table, Figure("<svg></svg>", NASTY)]), folded]
    return Document(
        kind="Evaluation",
        title=NASTY,
        answer="AUC 0.812.",
        sections=[Section("Results", blocks)],
        warnings=[f"warning {number}" for number in range(5)],
        reading=["read me"],
    )


def test_the_page_is_whole_escaped_and_answers_first(document: Document) -> None:
    text = html_document(document)
    page = Page(text)
    words = " ".join(page.words)
    assert "script" not in page.tags
    assert NASTY in page.words
    assert "<code>asmil compare</code>" in text
    assert words.index("AUC 0.812.") < words.index("warning 0") < words.index("Results")
    assert [line for line in page.addresses if not line.startswith("data:image/")] == []
    assert all(wanted in words for wanted in ("0.700 to 0.900", "42", "read me", "a note", "warning 4"))
    assert words.index("2 more warnings") < words.index("warning 3")
    assert text.count("svg") > 1
    for condition in ("prefers-color-scheme: dark", "max-width: 560px", "@media print"):
        assert condition in text


def test_a_table_without_a_caption_has_its_title_on_the_page(document: Document) -> None:
    table = Table(["row", "AUC"], [["a", "0.5"]], title="mean over seeds")
    captioned = replace(table, title="two slides", caption="What it is.")
    words = " ".join(Page(html_document(replace(document, sections=[Section("A", [table, captioned])]))).words)
    assert "ean over seeds" in words
    assert "wo slides" not in words


def test_names_and_options_do_not_break_inside_of_words(document: Document) -> None:
    table = settings_table({"stabilizers": {"entropy_floor": 0.85}, "track": []})
    sections = [Section("Again", ["Run `asmil train --set training.lr=0.1`: 50 % faster, e.g. today.", table])]
    text = html_document(replace(document, sections=sections))
    assert "stabilizers.<wbr>entropy_<wbr>floor" in text
    assert "<span>--set</span> training.lr=0.1" in text
    assert "50\u00a0%" in text
    assert all(whole in Page(text).words for whole in ("stabilizers.entropy_floor", "0.85", "none"))
    assert "e.g. today" in text


def test_markdown_keeps_what_is_not_folded(document: Document) -> None:
    text = markdown_document(document)
    assert "<script" not in text
    (row,) = [line for line in text.splitlines() if "0.812" in line and line.startswith("|")]
    for number in ("**0.812**", "(0.700 to 0.900)", "0.018"):
        assert number in row
    assert row.replace("\\|", "").count("|") == 5
    assert "secret" not in text
    assert all(f"warning {number}" in text for number in range(5))


def test_latex_escapes_and_has_even_rows(document: Document) -> None:
    text = latex_document(document, document.tables())
    body = [line for line in text.splitlines() if not line.startswith("%") and line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body} == {3}
    assert r"\textbf{0.812} $\pm$ 0.018 (0.700 to 0.900)" in text
    assert r"\textless{}script\textgreater{}" in body[1]


def test_the_terminal_has_the_answer_the_table_and_three_warnings(document: Document) -> None:
    console = Console(width=160, file=io.StringIO())
    print_document(document, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "hidden" not in shown
    assert "0.812 ±0.018" in shown
    assert "0.700–0.900" in shown
    assert shown.count("warning: ") == 3


def test_csv_has_the_keys_of_all_rows_and_leaves_undefined_empty() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([{"a": 0.1, "b": math.nan}, {"a": 2, "c": "x,y"}]))))
    assert rows == [{"a": "0.1", "b": "", "c": ""}, {"a": "2", "b": "", "c": "x,y"}]


def test_json_has_no_numbers_that_are_not_finite() -> None:
    found = jsonable({"a": [np.float64("nan"), math.inf, 1.5], "b": Interval(0, math.nan), "c": np.arange(2), 3: SCORE})
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["a"] == [None, None, 1.5]
    assert found["b"] == {"low": 0, "high": None}
    assert found["c"] == [0, 1]


def test_an_estimate_has_its_spreads() -> None:
    found = Estimate(0.5, per_training={(0, 0): 0.4, (0, 1): 0.6, (1, 0): math.nan, (1, 1): 0.7})
    assert found.per_fold == pytest.approx({0: 0.5, 1: 0.7})
    assert found.sd_folds == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert math.isnan(found.sd_seeds)
    assert set(found.to_dict("folds", "skipped")) == {
        *("value", "low", "high", "sd_folds", "per_fold", "skipped_resamples"),
    }
    assert not found.interval.excludes_zero
    assert Interval(0.1, 0.2).excludes_zero


def test_settings_are_flat() -> None:
    assert settings_table({"a": {"b": None, "c": [1, 2]}, "d": {}}).rows == [
        ("a.b", "not set"),
        ("a.c", "1, 2"),
        ("d", "not set"),
    ]
