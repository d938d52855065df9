"""The record of docs/auto.md, from a search on a tiny cohort."""

import json
import shutil
from pathlib import Path

import pytest

import asmil
import auto_searches as benchmark
from asmil.errors import AsmilError
from asmil.experiments.auto import findings, halving
from asmil.experiments.auto.halving import Design

QUICK = {"training.epochs": 2, "training.lr": 1e-3}


@pytest.fixture(scope="module")
def searched(small_cohort, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halving, "DESIGNS", (Design(2, 1, 1.0),))
        for page in ("write_report", "write_comparison"):
            patch.setattr(findings, page, lambda *given: None)
        out = tmp_path_factory.mktemp("auto") / "best"
        return asmil.auto(small_cohort, out, method=["abmil"], settings=QUICK, progress=False)


@pytest.fixture
def commands(searched, monkeypatch):
    """The commands; a search ends at once with the page of another one, or fails if its cohort is called missing."""
    given = []

    def run_asmil(arguments, log):
        given.append(arguments)
        if arguments[0] == "auto" and "missing" in arguments[1]:
            raise AsmilError("there is no such cohort")
        if arguments[0] == "auto":
            shutil.copytree(searched.page.parent, arguments[arguments.index("--out") + 1], dirs_exist_ok=True)

    monkeypatch.setattr(benchmark, "run_asmil", run_asmil)
    return given


def stored(searched):
    return json.loads(searched.page.with_suffix(".json").read_text())


def test_the_answers_are_those_of_the_page(searched):
    found, findings = benchmark.answers(stored(searched)), searched.findings
    assert (found["verdict"], found["chosen"]) == (findings.verdict, findings.chosen.name)
    assert found["difference"]["value"] == findings.differences[found["reference"]].value
    assert found["performance"]["value"] == findings.performance.value
    assert (found["performance"]["low"], found["performance"]["high"]) == findings.performance.interval
    assert found["outer_choices"].get(found["chosen"], 0) == findings.won
    assert sum(found["outer_choices"].values()) == findings.folds
    assert (found["minutes"], found["share_of_epochs"]) == (30, 1.0)


def test_a_search_that_fails_is_listed_and_the_others_are_recorded(commands, tmp_path, capsys):
    cohorts = [word for name in ("first", "missing", "last") for word in ("--cohort", name, "survival", f"{name}.csv")]
    words = ["--minutes", "2", "--at-once", "2", "--out", tmp_path / "record.json", "--keep", tmp_path / "searches"]
    assert benchmark.main([*cohorts, *map(str, words)]) == 1
    record = json.loads((tmp_path / "record.json").read_text())
    assert [found["name"] for found in record["searches"]] == ["first", "last", "synthetic"]
    assert {"device", "threads", "commit", "date", "command", "at_once"} <= set(record)
    assert "missing: there is no such cohort" in capsys.readouterr().err
    tasks = [words[words.index("--task") + 1] for words in commands if words[0] == "auto"]
    assert sorted(tasks) == ["classification", *["survival"] * 3]
    assert {words[words.index("--minutes") + 1] for words in commands if words[0] == "auto"} == {"2"}


def test_an_unknown_task_is_refused_before_anything_is_searched(commands, tmp_path):
    with pytest.raises(SystemExit):
        benchmark.main(["--cohort", "first", "surviving", "cohort.csv", "--out", str(tmp_path / "record.json")])
    assert not commands


def found_with(**changes):
    return {
        "name": "BRCA",
        "patients": 837,
        "minutes": 5.0,
        "minutes_taken": 4.25,
        "share_of_epochs": 0.2,
        "left_out": ["transmil"],
        "verdict": "pays",
        "reference": "linear",
        "difference": {"value": 0.035, "low": 0.016, "high": 0.056},
        "metric": "macro_auc",
        "performance": {"value": 0.885, "low": 0.854, "high": 0.912},
        "chosen": "clam_sb",
        "outer_choices": {"clam_sb": 3},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        (
            {},
            [
                "BRCA, 837 patients",
                "4.2 of 5",
                "left out: TransMIL",
                "+0.035 AUC (+0.016 to +0.056)",
                "CLAM-SB, in 3 of 3",
            ],
        ),
        ({"chosen": "abmil"}, ["ABMIL, in 0 of 3", "CLAM-SB in 3"]),
        ({"verdict": "no attention", "reference": None, "difference": None}, ["| no attention |"]),
        (
            {"verdict": "undecided", "difference": {"value": -0.02, "low": -0.04, "high": -0.01}},
            ["−0.040 to −0.010", "too few epochs"],
        ),
        ({"difference": {"value": 0.1, "low": None, "high": None}, "verdict": "undecided"}, ["+0.100 AUC (–)"]),
    ],
)
def test_a_row_of_the_table(changes, cells):
    line = benchmark.table({"searches": [found_with(**changes)]}).splitlines()[-1]
    for cell in cells:
        assert cell in line


@pytest.mark.heavy
def test_the_commands_search_a_tiny_cohort(small_cohort, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SYNTHETIC_COHORT", "--slides 24 --width 16 --tiles-min 20 --tiles-max 30")
    broken = tmp_path / "broken.csv"
    broken.write_text("slide\n")
    words = ["--minutes", "0.05", "--out", tmp_path / "record.json"]
    cohorts = ["--cohort", "small", "classification", small_cohort, "--cohort", "broken", "classification", broken]
    assert benchmark.main(list(map(str, [*cohorts, *words]))) == 1
    record = json.loads((tmp_path / "record.json").read_text())
    assert [found["name"] for found in record["searches"]] == ["small", "synthetic"]
    assert all(found["patients"] > 0 for found in record["searches"])
    assert str(broken) in capsys.readouterr().err
    assert not Path(benchmark.OUT).samefile(tmp_path / "record.json")
