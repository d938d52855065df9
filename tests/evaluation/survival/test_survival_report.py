from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from asmil.errors import AsmilError
from asmil.evaluation.report import evaluation_document, write_report
from asmil.evaluation.survival import evaluate_survival
from asmil.reporting import print_document
from fake_survival_run import write_survival_run
from parsed_page import Page


def test_a_run_reports_into_its_own_folder(tmp_path: Path) -> None:
    write_survival_run(tmp_path)
    evaluation = evaluate_survival(tmp_path, resamples=20)
    page = write_report(evaluation)
    assert page == tmp_path / "report.html"
    numbers = json.loads((tmp_path / "evaluation.json").read_text())
    assert numbers["task"] == "survival"
    assert numbers["trainings"] == 6
    assert len(numbers["curves"]["auc"]["time"]) == 40
    parsed = Page(page.read_text())
    assert any("Kaplan-Meier" in title for title in parsed.pictures)
    assert all(address.startswith("data:image/svg+xml;base64,") for address in parsed.addresses)
    text = " ".join(parsed.words)
    for wanted in ("6 (3 folds × 2 seeds)", "high risk", "fold 2, seed 1", "training.select: last"):
        assert wanted in text
    assert f"{evaluation.metrics['c_index'].value:.3f}" in text


def test_validation_numbers_stand_beside_and_are_called_optimistic(tmp_path: Path) -> None:
    write_survival_run(tmp_path, role="val", config={"training": {"select": "score"}})
    page = write_report(evaluate_survival(tmp_path, role="val", resamples=20))
    assert page.name == "report-val.html"
    assert (tmp_path / "evaluation-val.json").is_file()
    assert "the highest C-index" in page.read_text()
    assert "ptimistic" in page.read_text()


def test_several_runs_report_into_a_folder(tmp_path: Path) -> None:
    write_survival_run(tmp_path / "one")
    write_survival_run(tmp_path / "two", n=90, folds=2)
    evaluations = [evaluate_survival(tmp_path / name, resamples=20) for name in ("one", "two")]
    page = write_report(evaluations, tmp_path / "out")
    text = page.read_text()
    assert "2 runs" in text
    assert "same slides" in text
    assert len(json.loads((tmp_path / "out" / "metrics.json").read_text())) == 2
    with pytest.raises(AsmilError, match="--out"):
        write_report(evaluations)
    with pytest.raises(AsmilError, match="nothing to report"):
        write_report([])


def test_names_are_escaped(tmp_path: Path) -> None:
    run = tmp_path / "<img onerror=x>"
    write_survival_run(run, config={"method": "<b>bold</b>", "note": "<script>x</script>"})
    text = write_report(evaluate_survival(run, resamples=20)).read_text()
    assert "script" not in Page(text).tags
    assert "<img onerror" not in text


def test_a_page_of_what_is_undefined(tmp_path: Path) -> None:
    table = write_survival_run(tmp_path, n=12, folds=3, seeds=1, curves=False)
    table.assign(risk=1.0).to_parquet(tmp_path / "predictions.parquet")
    text = write_report(evaluate_survival(tmp_path, resamples=20)).read_text()
    assert "log-rank" in text
    assert "no Brier score" in text


def test_the_table_of_the_terminal(tmp_path: Path) -> None:
    write_survival_run(tmp_path)
    evaluation = evaluate_survival(tmp_path, resamples=20)
    console = Console(width=120, file=StringIO())
    print_document(evaluation_document([evaluation]), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{evaluation.metrics['c_index'].value:.3f} ±" in shown
    assert "120 patients" in shown
