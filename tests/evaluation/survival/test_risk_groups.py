from __future__ import annotations

import numpy as np
import pytest
from lifelines.statistics import logrank_test

from asmil.errors import AsmilError
from asmil.evaluation.survival.evaluate import TestedPart as Part
from asmil.evaluation.survival.evaluate import group_patients
from asmil.tasks.risk_groups import compare_groups
from fake_survival_run import exponential_patients


def _part(patients: list[int], risk: list[float], fold: int = 0, seed: int = 0) -> Part:
    n = len(patients)
    return Part(fold, seed, np.array(patients), np.arange(1.0, n + 1), np.ones(n), np.array(risk), None)


def test_the_cut_lies_within_the_fold() -> None:
    # the second fold's risks lie far above those of the first
    parts = [_part([0, 1, 2, 3], [1, 2, 3, 4]), _part([4, 5, 6, 7], [104, 103, 102, 101], fold=1)]
    assert group_patients(parts, 8).tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


def test_seeds_are_averaged_as_ranks() -> None:
    # the large numbers of one seed do not outvote two others
    low, high = [1.0, 2.0, 3.0, 4.0], [1000.0, 100.0, 10.0, 1.0]
    parts = [_part([0, 1, 2, 3], low, seed=0), _part([0, 1, 2, 3], low, seed=1), _part([0, 1, 2, 3], high, seed=2)]
    assert group_patients(parts, 4).tolist() == [0, 0, 1, 1]


def test_folds_that_share_patients_have_one_cut() -> None:
    parts = [_part([0, 1, 2], [1, 2, 3]), _part([1, 2, 3], [1, 2, 3], fold=1)]
    assert group_patients(parts, 4).tolist() == [0, 0, 1, 1]


def test_tertiles() -> None:
    assert group_patients([_part(list(range(6)), [5, 4, 3, 2, 1, -np.inf])], 6, 3).tolist() == [2, 2, 1, 1, 0, 0]
    with pytest.raises(AsmilError, match="4 risk groups"):
        group_patients([], 0, 4)


def test_equal_risks_are_one_group() -> None:
    group = group_patients([_part([0, 1, 2], [7, 7, 7])], 3)
    found = compare_groups(np.array([1.0, 2, 3]), np.ones(3), group)
    assert [one.patients for one in found.groups] == [3]
    assert np.isnan(found.p)


def test_the_test_is_log_rank_and_the_table_counts() -> None:
    patients = exponential_patients(200, seed=8)
    time, event = patients["time"].to_numpy(), patients["event"].to_numpy(dtype=float)
    group = (patients["log_risk"] > 0).to_numpy(dtype=int)
    found = compare_groups(time, event, group, unit="months")
    wanted = logrank_test(time[group == 0], time[group == 1], event[group == 0], event[group == 1])
    assert found.p == pytest.approx(wanted.p_value)
    assert found.statistic == pytest.approx(wanted.test_statistic)
    assert found.at_risk[:, 0].tolist() == [(group == 0).sum(), (group == 1).sum()]
    year = np.flatnonzero(found.at_risk_times % 12 == 0)[1]
    assert found.at_risk[1, year] == (time[group == 1] >= found.at_risk_times[year]).sum()
    low, high = found.groups
    assert (low.name, high.name) == ("low risk", "high risk")
    assert low.median > high.median
    assert high.median_interval.low < high.median < high.median_interval.high
    assert (low.low <= low.survival).all()
    assert (low.survival <= low.high).all()


def test_a_median_that_is_not_reached() -> None:
    found = compare_groups(np.array([1.0, 5, 6, 7]), np.array([1.0, 0, 0, 0]), np.zeros(4, dtype=int))
    assert found.groups[0].median == np.inf


@pytest.mark.parametrize("unit", ["months", "days"])
@pytest.mark.parametrize("longest", [0.4, 3.0, 11.0, 24.0, 25.0, 90.0, 400.0])
def test_a_table_has_a_handful_of_columns(longest: float, unit: str) -> None:
    times = compare_groups(np.array([longest / 2, longest]), np.ones(2), np.array([0, 1]), unit=unit).at_risk_times
    assert times[0] == 0
    assert times[-1] <= longest * 1.001
    assert 3 <= len(times) <= 8
