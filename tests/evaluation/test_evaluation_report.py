from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_curve
from typer import Typer
from typer.testing import CliRunner

from asmil.cli.evaluate import evaluate
from asmil.cli.synthetic import synthetic
from asmil.errors import AsmilError
from asmil.evaluation import RunEvaluation, evaluate_run, write_report
from asmil.evaluation.report import evaluation_document
from asmil.reporting.page import html_document
from asmil.tasks.metrics import roc_points
from fake_run_folder import write_run
from parsed_page import Page

NASTY = ("<script>alert(1)</script>", 'a"b&c', "$x_{|")


def page_of(evaluations: list[RunEvaluation]) -> str:
    return html_document(evaluation_document(evaluations))


def test_a_report_of_two_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "one", folds=2)
    write_run(tmp_path / "two", seeds=1, slides=30)
    evaluations = [evaluate_run(tmp_path / name, resamples=50) for name in ("one", "two")]
    page = write_report(evaluations, tmp_path / "out")
    assert {path.name for path in page.parent.iterdir()} == {
        "report.html",
        "report.md",
        "metrics.csv",
        "metrics.json",
    }
    parsed = Page(page.read_text())
    for kind in ("ROC", "Reliability", "validation loss"):
        assert any(kind in title for title in parsed.pictures), kind
    assert all(address.startswith("data:image/svg+xml;base64,") for address in parsed.addresses)
    text = " ".join(parsed.words)
    for wanted in ("4 (2 folds × 2 seeds)", "same slides", "no validation slides"):
        assert wanted in text
    markdown = (page.parent / "report.md").read_text()
    assert "| one (asmil, " in markdown
    assert len(json.loads((page.parent / "metrics.json").read_text())) == 2
    assert set(pd.read_csv(page.parent / "metrics.csv")["run"]) == {"one", "two"}


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<img onerror=x>"
    write_run(folder, NASTY, config={"method": "<b>bold</b>", "note": "<script>x</script>"})
    page = write_report([evaluate_run(folder, resamples=20)], tmp_path / "out")
    text = page.read_text()
    parsed = Page(text)
    assert "script" not in parsed.tags
    assert "<img onerror" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert NASTY[0] in parsed.words
    assert "<script" not in (page.parent / "report.md").read_text()


def test_a_single_run_reports_into_its_own_folder(tmp_path: Path) -> None:
    write_run(tmp_path, seeds=1, config={"data": {"max_tiles": 512}, "training": {"select": "last"}})
    page = write_report(evaluate_run(tmp_path, resamples=20))
    assert page == tmp_path / "report.html"
    assert json.loads((tmp_path / "evaluation.json").read_text())["trainings"] == 1
    text = page.read_text()
    assert "512 tiles" in text
    assert "last epoch" in text


def test_validation_numbers_of_a_chosen_epoch_are_called_optimistic(tmp_path: Path) -> None:
    write_run(tmp_path, role="val")
    assert "ptimistic" in page_of([evaluate_run(tmp_path, role="val", resamples=20)])


def test_the_rule_that_chose_the_epoch_is_told(tmp_path: Path) -> None:
    table = write_run(tmp_path)
    both = [table, table.assign(role="val", slide="v" + table["slide"], patient="v" + table["patient"])]
    pd.concat(both).to_parquet(tmp_path / "predictions.parquet")
    assert "macro-F1 + macro-AUC" in page_of([evaluate_run(tmp_path, resamples=20)])


def test_without_a_record_of_the_training(tmp_path: Path) -> None:
    write_run(tmp_path, seeds=2)
    (tmp_path / "fold-0" / "seed-0" / "metrics.jsonl").unlink()
    (tmp_path / "fold-0" / "seed-1" / "metrics.jsonl").write_text('{"epoch": 1\n')
    text = page_of([evaluate_run(tmp_path, resamples=20)])
    assert "were not recorded" in text
    assert "metrics.jsonl, line 1" in text


def test_one_class_has_no_roc_curve_and_still_a_page(tmp_path: Path) -> None:
    write_run(tmp_path, target=np.zeros(40, int))
    text = page_of([evaluate_run(tmp_path, resamples=20)])
    assert "AUC is undefined" in text
    pictures = Page(text).pictures
    assert "Reliability" in pictures
    assert not any("ROC" in title for title in pictures)


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(AsmilError, match="nothing to report"):
        write_report([], tmp_path)


def test_roc_points_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    positive, score = rng.random(60) < 0.4, rng.integers(0, 12, 60) / 12
    false, true, _ = roc_curve(positive, score, drop_intermediate=False)
    ours = roc_points(positive, score)
    np.testing.assert_allclose(ours[0], false)
    np.testing.assert_allclose(ours[1], true)


def _command(function: object) -> Typer:
    app = Typer()
    app.command()(function)  # type: ignore[type-var]
    return app


def test_the_verb_evaluate(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    runner, app = CliRunner(), _command(evaluate)
    shown = runner.invoke(app, [one, "--resamples", "20"])
    assert shown.exit_code == 0, shown.output
    assert "macro-F1" in shown.output
    assert (tmp_path / "one" / "report.html").is_file()
    both = runner.invoke(app, [one, two, "--resamples", "20", "--json"])
    assert [found["name"] for found in json.loads(both.output)] == ["one", "two"]
    assert not (tmp_path / "two" / "report.html").exists()
    runner.invoke(app, [one, two, "--resamples", "20", "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "report.md").is_file()


def test_the_verb_synthetic(tmp_path: Path) -> None:
    options = ["--slides", "4", "--width", "16", "--tiles-max", "250", "--difficulty", "0.8"]
    shown = CliRunner().invoke(_command(synthetic), [str(tmp_path), *options])
    assert shown.exit_code == 0, shown.output
    assert "site-5" in shown.output
    assert len(list((tmp_path / "features").glob("*.h5"))) == 4


def test_stages_are_told_apart_in_the_learning_curves():
    from asmil.runs.epochs import Training
    from asmil.runs.learning_curves import _course, learning_figures, stage_starts

    epochs = pd.DataFrame(
        {"epoch": [1, 2, 3, 4], "stage": ["pure", "pure", "masked", "masked"], "train.loss": [0.9, 0.8, 1.4, 1.3]}
    )
    training = Training(0, 0, epochs, 4)
    assert stage_starts(training) == [(1.0, "pure"), (3.0, "masked")]
    course = _course(training, "train.loss")
    assert course.index.tolist() == [1, 2, 2.5, 3, 4]
    assert np.isnan(course[2.5])
    assert learning_figures([training])
    plain = Training(0, 0, epochs.drop(columns="stage"), 4)
    assert stage_starts(plain) == []
    assert _course(plain, "train.loss").index.tolist() == [1, 2, 3, 4]


def test_the_report_shows_what_other_commands_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ("normal", "tumor"))
    folder = tmp_path / "run" / "faithfulness"
    folder.mkdir()
    area = {"value": 0.123, "low": 0.1, "high": 0.2}
    (folder / "faithfulness.json").write_text(json.dumps({"kinds": {"attention": {"area": area}}}))
    (tmp_path / "run" / "stability.json").write_text("{ broken")
    text = write_report(evaluate_run(tmp_path / "run", resamples=20)).read_text()
    assert "0.123" in text
    assert "faithfulness/faithfulness.html" in text
    assert "stability.json" in text, "a damaged file is named"


def test_one_predicted_class_is_an_alarm(tmp_path: Path) -> None:
    table = write_run(tmp_path / "run", ("normal", "tumor"))
    table.assign(prob_normal=0.9, prob_tumor=0.1).to_parquet(tmp_path / "run" / "predictions.parquet")
    evaluation = evaluate_run(tmp_path / "run", resamples=20)
    assert len(evaluation.alarms) == 1
    assert "normal" in evaluation.alarms[0]
    assert 'class="note alarm"' in write_report(evaluation).read_text()
