"""What a comparison writes: page, Markdown, LaTeX, CSV, JSON."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from asmil.evaluation.comparison import Comparison, compare_runs, write_comparison
from asmil.evaluation.comparison.report import answer_of
from asmil.reporting import Estimate, Interval
from asmil.reporting.formats import format_p, format_signed
from asmil.reporting.text import escape_latex
from fake_compared_runs import THREE, write_compared_run
from fake_survival_run import exponential_patients, write_survival_run
from parsed_page import Page

NASTY = "<b>50%_$x & y#"
FILES = {f"comparison.{ending}" for ending in ("csv", "json", "md", "tex", "html")} | {"differences.csv"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("runs")
    write_compared_run(folder / "plain", 0.7, THREE, folds=3)
    write_compared_run(folder / NASTY, 1.8, THREE, folds=3, seeds=2, noise_seed=1)
    found = compare_runs([folder / "plain", folder / NASTY, folder / "absent"], resamples=40)
    write_comparison(found, folder / "out")
    return found, folder / "out"


def test_all_files_say_how_seeds_were_combined(compared: tuple[Comparison, Path]) -> None:
    _, out = compared
    assert {path.name for path in out.iterdir()} == FILES
    for name in ("comparison.json", "comparison.md", "comparison.tex", "comparison.html"):
        text = (out / name).read_text()
        assert "seeds" in text
    rows = pd.read_csv(out / "differences.csv")
    assert rows["quantity"].str.contains("seed|folds").all()
    assert rows["p_of"].notna().all()
    assert (pd.read_csv(out / "comparison.csv")["value_of"] == "mean over seeds").all()


def test_csv_and_json_hold_the_same_numbers(compared: tuple[Comparison, Path]) -> None:
    found, out = compared
    written = json.loads((out / "comparison.json").read_text())
    json.dumps(written, allow_nan=False)
    table = pd.read_csv(out / "differences.csv", float_precision="round_trip")
    whole = table[table["class"].isna()]
    assert len(whole) == 4 * len(found.differences) == 8
    assert len(table) == 8 + len(THREE)
    for one, stored in zip(found.differences, written["differences"], strict=True):
        rows = {row.quantity: row for row in whole[whole["metric"] == one.metric.name].itertuples()}
        mean, ensemble, folds = (rows[name] for name in ("mean over seeds", "seed ensemble", "mean over folds"))
        for row, there in ((mean, stored), (ensemble, stored["ensemble"]), (folds, stored["folds"])):
            assert (row.difference, row.low, row.high, row.p) == tuple(
                there[key] for key in ("difference", "low", "high", "p")
            )
        assert (mean.difference, mean.p, mean.p_holm) == (one.value, one.p, stored["p_holm"])
        assert ensemble.p_holm == stored["ensemble"]["p_holm"]
        assert rows["pairs of seeds"].p == stored["per_seed"]["p_combined"]
        assert stored["per_seed"]["rule"] == "twice_median"
        assert mean.holm_family == written["holm_family"] == 2
        assert ensemble.holm_family == written["ensemble_holm_family"] == 2
    assert [method["name"] for method in written["runs"]] == ["plain", NASTY]
    scores = pd.read_csv(out / "comparison.csv", float_precision="round_trip")
    assert scores["value"].tolist() == [
        score["value"] for method in written["runs"] for score in method["metrics"].values()
    ]
    assert "absent" in written["problems"][0]


def test_the_page_is_whole_and_escaped(compared: tuple[Comparison, Path]) -> None:
    _, out = compared
    text = (out / "comparison.html").read_text()
    page = Page(text)
    assert all(page.pictures)
    assert page.addresses[0].startswith("data:image/svg+xml;base64,")
    assert NASTY in page.words
    assert "<b>50%" not in text
    words = " ".join(page.words)
    assert "absent" in words
    assert "p (Holm, 2)" in words
    assert all(name in words for name in THREE)


def test_latex_is_escaped_and_its_tables_are_even(compared: tuple[Comparison, Path]) -> None:
    _, out = compared
    text = (out / "comparison.tex").read_text()
    escaped = r"\textless{}b\textgreater{}50\%\_\$x \& y\#"
    assert escape_latex(NASTY) == escaped
    assert escaped in text
    assert r"\textbf{" in text
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body.count(r"\toprule") == body.count(r"\bottomrule") == 4  # runs, means, ensembles, folds
    assert not any(character in "\n".join(body) for character in "–−")
    for start, end in zip(_places(body, r"\begin{tabular}"), _places(body, r"\end{tabular}"), strict=True):
        columns = body[start].partition("}{")[2].rstrip("}")
        rows = [line for line in body[start:end] if line.endswith(r"\\")]
        assert {line.replace(r"\&", "").count("&") for line in rows} == {len(columns) - 1}


@pytest.mark.parametrize(("p_holm", "n_patients"), [(0.2, 200), (0.01, 16), (0.01, 200)])
def test_the_answer_names_what_speaks_against_a_clear_difference(
    compared: tuple[Comparison, Path], p_holm: float, n_patients: int
) -> None:
    found, _ = compared
    clear = Estimate(0.2, Interval(0.1, 0.3))
    differences = tuple(replace(one, estimate=clear, p_holm=p_holm) for one in found.differences)
    answer = answer_of(replace(found, differences=differences, n_patients=n_patients))
    assert format_signed(0.2) in answer
    assert (f"{format_p(0.2)} after" in answer) == (p_holm == 0.2)
    assert ("16 patients" in answer) == (n_patients == 16)


def test_bold_marks_all_that_share_the_best_shown_value(tmp_path: Path) -> None:
    write_compared_run(tmp_path / "a", seeds=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=20)
    assert found.best(found.metrics[0]) == {"a", "b"}


def test_a_survival_comparison_has_a_page_without_ensembles(tmp_path: Path) -> None:
    patients = exponential_patients(60)
    for name, noise in (("a", 0.2), ("b", 1.0)):
        write_survival_run(tmp_path / name, noise=noise, patients=patients, folds=1)
    found = compare_runs([tmp_path / "a", tmp_path / "b"], resamples=30)
    page = write_comparison(found, tmp_path / "out")
    text = page.read_text()
    assert "C-index" in text
    assert "ensembles" not in text
    assert "60 patients" in text
    assert {path.name for path in page.parent.iterdir()} == FILES


def test_numbers_as_text() -> None:
    assert format_signed(-0.00001) == "+0.000"
    assert format_signed(-0.25) == "−0.250"
    assert format_signed(math.nan) == format_p(math.nan) == "–"
    assert format_p(0.0004) == "< 0.001"
    assert format_p(0.0416) == "0.042"


def _places(lines: list[str], start: str) -> list[int]:
    return [place for place, line in enumerate(lines) if line.startswith(start)]
