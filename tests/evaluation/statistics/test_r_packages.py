"""The statistics of a validation agree with packages of R; `reference_r/reference.R` made the numbers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from asmil.evaluation import (
    benjamini_hochberg,
    calibration_curves,
    calibration_intercepts,
    calibration_slopes,
    delong,
    differing_shares,
    heterogeneity,
    holm,
    net_benefit,
)
from asmil.tasks.concordance import concordance
from asmil.tasks.intervals import proportion_interval
from asmil.tasks.risk_groups import compare_groups
from asmil.tasks.survival_metrics import brier_score, survival_curves, time_dependent_auc

FOLDER = Path(__file__).parent / "reference_r"
REFERENCE = json.loads((FOLDER / "reference.json").read_text(encoding="utf-8"))
PATIENTS = {name: column.to_numpy(float) for name, column in pd.read_csv(FOLDER / "patients.csv").items()}
OUTCOME, P, Q, TIME, EVENT, RISK = (PATIENTS[name] for name in ("outcome", "p", "q", "time", "event", "risk"))


def test_calibration_of_rms():
    r, ones = REFERENCE["calibration"], np.ones((1, len(P)))
    assert calibration_intercepts(OUTCOME, P, ones)[0] == pytest.approx(r["intercept"], abs=1e-8)
    assert calibration_slopes(OUTCOME, P, ones)[0] == pytest.approx(r["slope"], abs=1e-6)
    assert np.mean((OUTCOME - P) ** 2) == pytest.approx(r["brier"], abs=1e-10)
    np.testing.assert_allclose(calibration_curves(OUTCOME, P, ones, np.array(r["at"]))[0], r["curve"], atol=1e-6)


def test_auc_of_proc():
    r, ours = REFERENCE["auc"], delong(OUTCOME, P, Q)
    found = [ours.auc_a, ours.auc_b, *ours.interval_a, ours.z, ours.p]
    np.testing.assert_allclose(found, [r["p"], r["q"], *r["interval_p"], r["z"], r["p_value"]], atol=1e-10)


def test_net_benefit_by_its_definition():
    r = REFERENCE["net_benefit"]
    np.testing.assert_allclose(net_benefit(OUTCOME, P, np.array(r["at"]))[0], r["model"], atol=1e-12)


def test_shares_and_their_differences():
    r = REFERENCE["proportions"]
    np.testing.assert_allclose([proportion_interval(*counts) for counts in r["counts"]], r["intervals"], atol=1e-10)
    r = REFERENCE["shares"]
    ours = differing_shares(r["successes"], r["totals"])
    assert ours.q == pytest.approx(r["chi_square"], abs=1e-10)
    assert ours.p == pytest.approx(r["p"], abs=0.01)  # both are of random permutations


def test_heterogeneity_of_metafor():
    r = REFERENCE["heterogeneity"]
    sizes = 1 / np.array(r["variances"])  # one variance for all, as it were
    ours = heterogeneity(r["values"], np.sqrt(r["variances"]), sizes)
    np.testing.assert_allclose([ours.q, ours.p], [r["q"], r["p"]], atol=1e-10)


def test_many_p_values():
    r = REFERENCE["adjusted"]
    np.testing.assert_allclose(holm(r["p"]), r["holm"], atol=1e-12)
    np.testing.assert_allclose(benjamini_hochberg(r["p"]), r["benjamini_hochberg"], atol=1e-12)


def test_survival():
    r = REFERENCE["survival"]
    np.testing.assert_allclose(survival_curves(TIME, EVENT).at(r["times"])[0], r["kaplan_meier"], atol=1e-10)
    assert concordance(TIME, EVENT, RISK) == pytest.approx(r["concordance"], abs=1e-10)
    groups = compare_groups(TIME, EVENT, np.array([risk > np.median(RISK) for risk in RISK], dtype=int))
    assert groups.statistic == pytest.approx(r["log_rank"], abs=1e-8)
    assert [group.median for group in groups.groups] == r["medians"]
    np.testing.assert_allclose([group.median_interval for group in groups.groups], r["median_intervals"])
    survival = PATIENTS["survival"]
    assert brier_score(TIME, EVENT, survival, 20) == pytest.approx(r["brier_at_20"], abs=1e-10)
    assert time_dependent_auc(TIME, EVENT, 1 - survival, [20])[0] == pytest.approx(r["auc_at_20"], abs=1e-10)
