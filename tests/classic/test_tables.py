"""The report, and the page of the documentation that is made from one."""

import json

import numpy as np
import pytest

from asmil.classic.settings import contenders
from asmil.classic.summary import PAPER, make_report, summarize
from asmil.classic.tables import (
    accuracy_table,
    csv_table,
    markdown_report,
    seed_table,
    set_table,
)


def result(seed, folds, name="abmil", rules=("last", "val", "optimistic")):
    rule = {"folds": folds, "auc": 0.5 + seed / 10, "epochs": []}
    return {"set": "toy", "name": name, "seed": seed, "seconds": 1.0, "rules": dict.fromkeys(rules, rule)}


def report(rules=("last", "val")):
    one_set = {
        "name": "toy",
        "bags": 4,
        "positive": 2,
        "instances": 9,
        "features": 3,
        "bag_sizes": [1, 2.5, 4],
        "best_column": {"column": 2, "per_instance": 0.6, "per_bag": 0.75},
    }
    results = [result(1, [0.5, 1.0]), result(0, [0.25, 0.75]), result(0, [1.0, 1.0], "mi_svm", ("last",))]
    rows = contenders(["abmil", "mi_svm"], ["paper"], {})
    return make_report(results, rules, [one_set], rows, {"command": "asmil classic toy", "folds": 2, "seeds": [0, 1]})


def test_means_and_spreads():
    (entry,) = summarize([result(1, [0.5, 1.0]), result(0, [0.25, 0.75])], ["last"])
    assert entry["mean"] == 0.625
    assert entry["sd_folds"] == pytest.approx(np.std([0.5, 1, 0.25, 0.75], ddof=1))
    assert (entry["seeds"], entry["per_seed"]) == ([0, 1], [0.5, 0.75])
    assert entry["sd_seeds"] == pytest.approx(np.std([0.5, 0.75], ddof=1))
    assert (entry["n_folds"], entry["auc"]) == (4, pytest.approx(0.55))


def test_tables_show_every_method_and_the_optimistic_rule_only_if_asked_for():
    found = report()
    assert "| abmil | 0.625 ± 0.323 |" in accuracy_table(found, "last")
    assert "mi_svm" in accuracy_table(found, "last")
    assert "mi_svm" not in accuracy_table(found, "val")
    assert "| abmil | 0.500–0.750 |" in seed_table(found, "last")
    assert "| toy | 4 (2) | 9 | 3 | 1 / 2.5 / 4 | 0.600, 0.750 |" in set_table(found)
    assert "optimistic" not in markdown_report(found)
    assert "upper bound" in markdown_report(report(("last", "val", "optimistic")))
    assert len(csv_table(found).splitlines()) == 4
    assert "cannot be compared" in markdown_report(found)
    json.dumps(found)


def test_the_papers_figures_are_whole():
    assert all(of.keys() == PAPER["asmil"].keys() for of in PAPER.values())
    assert PAPER["asmil"]["fox"] == (0.961, 0.025)
    assert len(PAPER) == 7
