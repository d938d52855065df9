"""Files of survival numbers: recognized, answered without their numbers, compared in full."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest

from oracles.__main__ import check_file
from oracles.sheet import withhold
from oracles.sheets import KINDS, recognize, survival
from shared_data import SHARED_DATA, oracle_files, read_oracle, shared_file


def verdict_on(tmp_path, content):
    folder = tmp_path / "oracles"
    folder.mkdir(exist_ok=True)
    path = folder / "any_name.json"
    path.write_text(json.dumps(content))
    return check_file(path)


def tensor(*values):
    return {"shape": [len(values)], "values": list(values)}


def own_file():
    """Two bins, all logits 0, and a table of three patients; every number by hand."""
    log2, largest = math.log(2), -math.log(1e-7)
    note = (
        "cox uses logits[:,0] as log-risk; logits (60, 0, ..., 0) in two rows with time_bin (1, last) and event (1, 0)"
    )
    inputs = {"logits": [[0.0, 0.0]] * 3, "time_bin": [0, 1, 0], "event": [1, 1, 0], "note": note}
    losses = {
        "ifmle_per_sample": tensor(log2, log2, log2),
        "ifmle_mean_alpha0.7": {"shape": [], "values": [log2 * 2.3 / 3]},
        "patchgcn_nll_per_sample_alpha0": tensor(log2, 2 * log2, log2),
        "cox_breslow_mean": {"shape": [], "values": [math.log(3) / 3]},
        "ifmle_saturated": tensor(largest, largest),
        "risk_incidence": tensor(-0.5, -0.5, -0.5),
        "risk_hazard": tensor(-0.75, -0.75, -0.75),
    }
    case = {"time": [1.0, 2.0, 2.0], "event": [1, 1, 0], "risk": [3.0, 1.0, 1.0]}
    case |= {"sksurv": {"cindex": 2.5 / 3, "concordant": 2, "discordant": 0, "tied_risk": 1, "tied_time": 1}}
    case |= {"survivaleval_ties_None": 1.0, "survivaleval_ties_All": 3 / 4, "paper_formula": 1.0}
    nobody = {"time": [1.0], "event": [0], "risk": [0.0], "sksurv": {"error": "x"}, "paper_formula": None}
    times = {"logits": [[0.0, 0.0]], "bin_edges": [0, 10, 30], "mean_survival_time": [2.5]}
    return {"inputs": inputs, "losses": losses, "cindex": {"own": case, "nobody": nobody}, "mean_time": times}


def test_a_file_of_our_own_passes(tmp_path):
    verdict = verdict_on(tmp_path, own_file())
    assert (verdict.passed, verdict.method) == (True, "survival"), verdict.details
    assert verdict.details == "22 outputs"


def test_the_saturated_rows_need_no_note(tmp_path):
    content = own_file()
    del content["inputs"]["note"]
    largest = -math.log(1e-7)
    content["losses"]["ifmle_saturated"] = tensor(largest, largest, largest, 0.0)
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed, verdict.details


def test_bins_of_a_cohort_of_our_own(tmp_path, monkeypatch):
    data = tmp_path / "data" / "survival"
    data.mkdir(parents=True)
    rows = [("a", 2.0, 1), ("a", 2.0, 1), ("b", 8.0, 1), ("c", 20.0, 0), ("d", 50.0, 1), ("e", 60.0, 0)]
    lines = [f"{case},{number},{time},{event}" for number, (case, time, event) in enumerate(rows)]
    (data / "tcga_own_survival.csv").write_text("\n".join(["case_id,slide_id,survival_months,event", *lines]))
    (data / "tcga_own_folds.csv").write_text("case_id,fold\na,0\nb,0\nc,0\nd,1\n")
    monkeypatch.delenv("ASMIL_DATA", raising=False)
    row = {"fold": 1, "max_event_time_train": 8.0, "n_train": 3, "n_test": 1, "events_train": 2, "missing": 0}
    row |= {"num_bins": 2, "time_bins": [0.0, 4.0, 60.00001], "patients_per_bin_all": [1, 4]}
    row |= {"quantile4_time_bins": [0.0, 3.5, 5.0, 6.5, 60.00001], "quantile_time_bins": [0.0, 5.0, 60.00001]}
    verdict = verdict_on(tmp_path, {"binning": {"own": [row]}})
    assert verdict.passed, verdict.details
    row["patients_per_bin_all"] = [2, 3]
    assert "[1, 4] instead of [2, 3]" in verdict_on(tmp_path, {"binning": {"own": [row]}}).details


def test_cohorts_without_tables_are_named(tmp_path):
    content = own_file() | {"binning": {"unheard_of": [{"fold": 0, "num_bins": 3}]}}
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed
    assert "unheard_of" in verdict.details


@pytest.mark.parametrize("path", oracle_files("survival*.json"))
def test_official_files_are_covered(path):
    verdict = check_file(path)
    assert verdict.passed, verdict.details


@pytest.mark.parametrize(
    ("place", "by"),
    [
        (("losses", "patchgcn_ce_surv_mean_alpha0.5", "values", 0), 3e-5),
        (("losses", "cox_breslow_mean", "values", 0), 3e-5),
        (("losses", "risk_hazard", "values", 2), 3e-5),
        (("cindex", "tied_both", "sksurv", "tied_risk"), 1),
        (("cindex", "tied_time", "survivaleval_ties_All"), 3e-5),
        (("mean_time", "mean_survival_time", 1), 1e-3),
        (("binning", "luad", 2, "time_bins", 3), 1e-2),
        (("binning", "brca", 1, "patients_per_bin_all", 3), 1),
        (("binning", "ucec", 4, "events_train"), 1),
    ],
    ids=str,
)
def test_every_number_counts(place, by, tmp_path):
    content = read_oracle("survival")
    if place[0] == "binning":
        shared_file(SHARED_DATA / "survival" / f"tcga_{place[1]}_survival.csv")
    *way, last = place
    holder = content
    for step in way:
        holder = holder[step]
    holder[last] += by
    verdict = verdict_on(tmp_path, content)
    assert verdict.passed is False
    assert ".".join(str(step) for step in place[:2]).split("[")[0] in verdict.details


def test_what_is_not_known_is_said(tmp_path):
    content = own_file()
    content["losses"]["deephit"] = tensor(1.0)
    content["cindex"]["own"]["uno"] = 0.7
    details = verdict_on(tmp_path, content).details
    assert "losses.deephit.shape: not answered" in details
    assert "cindex.own.uno: not answered" in details


def test_the_answers_are_found_without_the_official_numbers():
    content = own_file()
    sheet = withhold(content, survival.GIVEN)
    assert sheet["losses"]["ifmle_per_sample"] == {"shape": None, "values": None}
    changed = copy.deepcopy(content)
    changed["losses"]["risk_hazard"]["values"] = [9.0, 9.0, 9.0]
    changed["cindex"]["own"]["sksurv"]["cindex"] = 9.0
    assert withhold(changed, survival.GIVEN) == sheet
    answers = survival.answer(sheet | {"cohorts": {}})
    np.testing.assert_allclose(answers["mean_time"]["mean_survival_time"], [2.5])


def test_no_file_is_of_two_kinds():
    assert [kind.name for kind in KINDS if kind.recognizes(own_file())] == ["survival"]
    for name in ("statistics", "froc", "normalizers", "affine"):
        assert recognize(read_oracle(name)) is not survival.KIND
