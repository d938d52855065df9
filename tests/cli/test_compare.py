"""`asmil compare`: what is printed, what is written, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from asmil.cli.compare import compare
from asmil.errors import AsmilError
from fake_compared_runs import write_compared_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    paths = [folder / name for name in ("one", "two", "three")]
    for seed, path in enumerate(paths):
        write_compared_run(path, 0.6 + 0.5 * seed, folds=2, slides=40, slides_a_patient=2, noise_seed=seed)
    return paths


def asmil_compare(*arguments: object) -> Result:
    app = Typer()
    app.command()(compare)
    return CliRunner().invoke(app, [*map(str, arguments), "--resamples", "40"], env={"COLUMNS": "160"})


def test_tables_and_words_are_printed(runs: list[Path]) -> None:
    done = asmil_compare(*runs)
    assert done.exit_code == 0, done.output
    for wanted in ("40 slides", "20 patients", "2 folds", "macro-F1", "macro-AUC", "(Holm,"):
        assert wanted in done.output
    assert "--unit patient" in " ".join(done.output.split())


def test_json_with_a_reference_or_all_pairs(runs: list[Path]) -> None:
    against = json.loads(asmil_compare(*runs, "--reference", runs[1], "--json").stdout)
    assert against["reference"] == "two"
    assert {(one["run"], one["reference"]) for one in against["differences"]} == {("one", "two"), ("three", "two")}
    pairs = json.loads(asmil_compare(*runs, "--all-pairs", "--json", "--unit", "patient").stdout)
    assert (pairs["reference"], len(pairs["differences"]), pairs["unit"]) == (None, 6, "patient")
    # a run that separates all 20 patients has no p-value of a bootstrap
    assert pairs["holm_family"] == sum(one["p"] is not None for one in pairs["differences"])


def test_files_are_written_where_asked(runs: list[Path], tmp_path: Path) -> None:
    done = asmil_compare(*runs[:2], "--out", tmp_path / "out")
    assert f"page: {tmp_path / 'out' / 'comparison.html'}" in done.output
    assert len(list((tmp_path / "out").iterdir())) == 6


def test_an_unfinished_run_is_named_and_the_end_is_not_well(runs: list[Path], tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    write_compared_run(begun)
    (begun / "predictions.parquet").unlink()
    done = asmil_compare(*runs[:2], begun)
    assert done.exit_code == 1
    assert str(begun) in done.stderr
    assert "macro-F1" in done.stdout


def test_a_mistake_is_one_sentence(runs: list[Path]) -> None:
    done = asmil_compare(runs[0])
    assert isinstance(done.exception, AsmilError)
    assert "two runs" in str(done.exception)
