from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asmil.errors import AsmilError
from asmil.tasks.survival_bins import bin_of, fit_bins, patch_gcn_bins
from shared_data import SHARED_DATA, read_oracle, shared_file

TIME = [2.0, 4.0, 6.0, 8.0, 30.0]
EVENT = [1, 1, 0, 1, 0]


def test_intervals_end_at_the_last_event_and_the_last_edge_at_the_last_patient():
    np.testing.assert_allclose(fit_bins(TIME, EVENT, 4), [0, 2, 4, 6, 30.00001])


def test_quantiles_are_those_of_the_events():
    np.testing.assert_allclose(fit_bins(TIME, EVENT, 2, "quantile"), [0, 4, 30.00001])
    np.testing.assert_allclose(fit_bins(TIME, EVENT, 4, "quantile"), [0, 3, 4, 6, 30.00001])


def test_patients_outside_of_training_count_only_by_the_official_rule():
    np.testing.assert_allclose(fit_bins(TIME, EVENT, 2, all_times=[*TIME, 99.0]), [0, 4, 99.00001])
    np.testing.assert_allclose(fit_bins(TIME, EVENT, 2, all_times=[1.0]), [0, 4, 30.00001])


@pytest.mark.parametrize(("events", "bins"), [(1, 1), (2, 2), (4, 2), (5, 3), (135, 12)])
def test_the_number_of_bins_is_the_root_of_the_events_rounded_up(events, bins):
    time = np.arange(1, events + 4)
    assert len(fit_bins(time, time <= events)) - 1 == bins


def test_equal_quantiles_make_fewer_bins():
    assert len(fit_bins([5.0] * 9 + [7.0], [1] * 10, 4, "quantile")) - 1 == 2
    np.testing.assert_allclose(fit_bins([0.0, 0.0, 0.0, 3.0], [1, 1, 1, 0], 3, "quantile"), [0, 3.00001])
    np.testing.assert_allclose(fit_bins([0.0, 3.0], [1, 0], 3), [0, 3.00001])


def test_more_bins_than_events():
    assert len(fit_bins([3.0, 5.0], [1, 0], 6)) - 1 == 6


def test_patch_gcn_looks_at_everyone():
    np.testing.assert_allclose(
        patch_gcn_bins([1.0, 2.0, 3.0, 4.0, 5.0, 90.0], [0, 1, 1, 1, 1, 0]),
        [1 - 1e-6, 2.75, 3.5, 4.25, 90 + 1e-6],
        atol=1e-12,
    )


def test_a_time_on_an_edge_is_in_the_bin_on_its_right():
    assert bin_of([0.0, 1.999, 2.0, 3.99, 4.0, 1000.0, -1.0], [0, 2, 4, 6]).tolist() == [0, 0, 1, 1, 2, 2, 0]


@given(
    st.lists(st.tuples(st.floats(0, 300), st.booleans()), min_size=1, max_size=60).filter(
        lambda rows: any(event for _, event in rows)
    ),
    st.sampled_from(["interval", "quantile"]),
    st.none() | st.integers(1, 9),
)
@settings(deadline=None)
def test_every_training_patient_lies_within_its_bin(rows, rule, n_bins):
    time, event = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    edges = fit_bins(time, event, n_bins, rule)
    assert (np.diff(edges) > 0).all()
    assert 1 <= len(edges) - 1 <= (n_bins or math.ceil(math.sqrt(event.sum())))
    place = bin_of(time, edges)
    assert ((edges[place] <= time) & (time < edges[place + 1])).all()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (([1.0, 2.0], [0, 0]), "2 training patients"),
        (([1.0, math.nan], [1, 0]), "time of patient 1"),
        (([1.0, 2.0], [1, 0.5]), "event of patient 1"),
        (([1.0, 2.0], [1, 0], 0), "time bins .*0"),
        (([1.0, 2.0], [1, 0], 2, "equal"), "'equal'"),
        (([1.0, 2.0], [1, 0], 2, "interval", [math.inf]), "time of patient 0"),
    ],
)
def test_what_gives_no_bins_is_refused(arguments, word):
    with pytest.raises(AsmilError, match=word):
        fit_bins(*arguments)


def test_patch_gcn_bins_of_a_shipped_cohort_cover_its_patients():
    with shared_file(SHARED_DATA / "survival" / "tcga_ucec_survival.csv").open() as file:
        rows = {row["case_id"]: (float(row["survival_months"]), int(row["event"])) for row in csv.DictReader(file)}
    time, event = np.array(list(rows.values())).T
    counts = np.bincount(bin_of(time, patch_gcn_bins(time, event)))
    assert counts.sum() == 480
    assert len(counts) == 4
    assert sum(read_oracle("survival")["binning"]["ucec"][0]["patients_per_bin_all"]) == 480
