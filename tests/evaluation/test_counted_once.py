"""Every slide (or patient) is counted once, under the name of what it is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer import Typer
from typer.testing import CliRunner

from asmil.cli.evaluate import evaluate
from asmil.evaluation import evaluate_run
from asmil.evaluation.report import evaluation_document
from fake_run_folder import write_run


def write_disagreeing(path: Path) -> None:
    """12 slides of 12 patients and 3 seeds; seed 0 is wrong on two slides, which the mean over seeds gets right."""
    rows = []
    for seed in range(3):
        for slide in range(12):
            tumor = slide % 2 == 1
            right = 0.4 if seed == 0 and slide < 2 else 0.99
            prob = right if tumor else 1 - right
            row = {"slide": f"s{slide}", "patient": f"p{slide}", "fold": 0, "seed": seed, "role": "test"}
            rows.append(row | {"target": ["normal", "tumor"][tumor], "prob_normal": 1 - prob, "prob_tumor": prob})
    write_run(path, slides=12, seeds=3)
    pd.DataFrame(rows).to_parquet(path / "predictions.parquet")


def test_confusion_and_headline_count_the_mean_prediction_of_a_slide(tmp_path: Path) -> None:
    write_disagreeing(tmp_path / "run")
    found = evaluate_run(tmp_path / "run", resamples=50)
    assert found.confusion.tolist() == [[6, 0], [0, 6]]
    assert found.to_dict()["confusion"]["counts"] == [[6, 0], [0, 6]]
    assert found.metrics["accuracy"].value == pytest.approx(34 / 36)
    assert "all 12 slides" in found.in_words
    assert "94 %" in found.in_words  # single trainings
    assert "3 trainings" in evaluation_document([found]).tables()[0].title


def test_patients_are_called_patients(tmp_path: Path) -> None:
    write_run(tmp_path / "run", slides=20)
    found = evaluate_run(tmp_path / "run", resamples=20, unit="patient")
    assert found.confusion.sum() == found.n_patients == 10
    assert "patients" in found.in_words
    assert "tumor slides" not in found.in_words
    columns = {name for table in evaluation_document([found]).tables() for name in table.columns}
    assert "slides" not in columns
    assert {"patient", "patients"} <= columns
    trained = write_run(tmp_path / "joined", slides=20, config={"data": {"unit": "patient"}})
    trained.drop_duplicates(["patient", "seed"]).assign(slide=lambda table: table["patient"]).to_parquet(
        tmp_path / "joined" / "predictions.parquet"
    )
    joined = evaluate_run(tmp_path / "joined", resamples=20)
    assert "slide" not in joined.in_words
    assert joined.sizes == "10 patients"


def test_tables_of_several_runs_are_named(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_run(tmp_path / name)
    app = Typer()
    app.command()(evaluate)
    shown = CliRunner().invoke(app, [str(tmp_path / "first"), str(tmp_path / "second"), "--resamples", "20"])
    assert shown.exit_code == 0, shown.output
    document = evaluation_document([evaluate_run(tmp_path / name, resamples=20) for name in ("first", "second")])
    _, *classes = [table for table in document.tables() if table.in_terminal]
    assert ["first" in table.title for table in classes] == [True, False]
    assert ["second" in table.title for table in classes] == [False, True]
    assert all(table.title in " ".join(shown.output.split()) for table in classes)


def test_right_slides_are_not_called_wrong(tmp_path: Path) -> None:
    write_disagreeing(tmp_path / "run")
    document = evaluation_document([evaluate_run(tmp_path / "run", resamples=20)])
    table = next(one for one in document.tables() if "rank" in one.columns)
    ranks = [str(row[-1]) for row in table.rows]
    assert not {"wrong", "worst"} & set(ranks)
    assert len(set(ranks)) == 2


def test_folds_of_sites_are_named_by_their_site(tmp_path: Path) -> None:
    table = write_run(tmp_path / "run", folds=2, seeds=1)
    splits = pd.concat(
        [
            table.drop_duplicates("slide").assign(role=["train", "test"][test], fold=fold, test_site=site)
            for fold, site in enumerate(("north", "south"))
            for test in (0, 1)
        ]
    )
    splits[["slide", "patient", "fold", "role", "test_site"]].to_csv(tmp_path / "run" / "splits.csv", index=False)
    found = evaluate_run(tmp_path / "run", resamples=20)
    named = next(one for one in evaluation_document([found]).tables() if one.columns[0] == "training")
    assert [str(row[0]).split(",")[0] for row in named.rows[:2]] == ["site north", "site south"]
    assert found.to_dict()["fold_names"] == {"0": "site north", "1": "site south"}
