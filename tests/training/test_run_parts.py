"""A run in parts: the same results whoever trains them, and what fails or is left resumes."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asmil import AsmilError
from asmil.engine import InlineEngine
from asmil.runs.config import resolve
from asmil.training.run import train_run
from asmil.training.run_parts import FoldSeeds, RunObserver, TrainingEngine, split_run, trainings_that_fit

CONFIG = resolve("abmil", changes={"training": {"epochs": 2, "device": "cpu"}, "folds": 2, "seeds": 2})


class Seen(RunObserver):
    def __init__(self):
        self.events = []

    def already_trained(self, fold, seed):
        self.events.append(("already", fold, seed))

    def training(self, fold, seed, epochs, epochs_done):
        self.events.append(("training", fold, seed))


class OneWorker(InlineEngine):
    workers = 1


class Here(TrainingEngine):
    """Shares are sent as to another process, but trained in this one."""

    def build(self, device, feature_bytes, trainings, observer):
        del device, feature_bytes, trainings
        engine = InlineEngine if self.workers is None else OneWorker
        return engine(1, "cpu", lambda event: getattr(observer, event[0])(*event[1:]))


@pytest.fixture(scope="module")
def one_by_one(small_cohort, tmp_path_factory):
    return train_run(small_cohort, tmp_path_factory.mktemp("parts") / "run", CONFIG)


def assert_same(found, expected):
    pd.testing.assert_frame_equal(pd.read_parquet(found.predictions), pd.read_parquet(expected.predictions))


def test_parts_have_the_results_of_one_by_one(small_cohort, one_by_one, tmp_path):
    seen = Seen()
    run = train_run(small_cohort, tmp_path / "run", CONFIG, observer=seen, engine=Here())
    assert_same(run, one_by_one)
    assert sorted(seen.events) == [("training", fold, seed) for fold in (0, 1) for seed in (0, 1)]
    again = Seen()
    train_run(small_cohort, tmp_path / "run", CONFIG, observer=again, engine=Here())
    assert {event[0] for event in again.events} == {"already"}


@pytest.mark.heavy
def test_processes_have_the_results_of_one_by_one(small_cohort, one_by_one, tmp_path):
    seen = Seen()
    run = train_run(small_cohort, tmp_path / "run", CONFIG, observer=seen, engine=TrainingEngine("local", workers=2))
    assert_same(run, one_by_one)
    assert len(seen.events) == 4


@pytest.mark.parametrize("workers", [None, 1])
def test_a_part_that_fails_is_named_and_the_others_are_kept(small_cohort, one_by_one, tmp_path, monkeypatch, workers):
    from asmil.training import run_parts

    train = run_parts.Trainings.train

    def failing(self, *parts):
        if any(part.fold == 0 for part in parts):
            raise AsmilError("on purpose")
        train(self, *parts)

    monkeypatch.setattr(run_parts.Trainings, "train", failing)
    with pytest.raises(AsmilError, match=r"fold 0.*on purpose") as told:
        train_run(small_cohort, tmp_path / "run", CONFIG, engine=Here(workers=workers))
    assert "fold 1" not in str(told.value)
    monkeypatch.setattr(run_parts.Trainings, "train", train)
    seen = Seen()
    assert_same(train_run(small_cohort, tmp_path / "run", CONFIG, observer=seen, engine=Here()), one_by_one)
    assert {event[:2] for event in seen.events} == {("training", 0), ("already", 1)}


def test_there_are_no_more_workers_than_trainings():
    engine = TrainingEngine("local", workers=64).build("cpu", 0, 5, RunObserver())
    assert engine.workers == 5


@given(folds=st.integers(1, 6), seeds=st.integers(1, 5), workers=st.integers(1, 40), whole_folds=st.booleans())
def test_shares_are_nearly_equal_and_hold_every_training_once(folds, seeds, workers, whole_folds):
    shares = split_run(folds, range(seeds), workers, whole_folds=whole_folds)
    trained = [(part.fold, seed) for share in shares for part in share.parts for seed in part.seeds]
    assert sorted(trained) == [(fold, seed) for fold in range(folds) for seed in range(seeds)]
    unit = seeds if whole_folds else 1
    assert len(shares) == min(workers, folds * seeds // unit)
    sizes = [sum(len(part.seeds) for part in share.parts) for share in shares]
    assert max(sizes) - min(sizes) <= unit


def test_seeds_of_a_fold_stay_together():
    first, second = split_run(5, (0, 1, 2), 2, whole_folds=False)
    assert str(first) == "fold 0, seed 0, 1, 2; fold 1, seed 0, 1, 2; fold 2, seed 0"
    assert second.parts[0] == FoldSeeds(2, (1, 2))


def test_trainings_share_a_gpu_by_its_memory():
    gigabyte = 1 << 30
    assert trainings_that_fit(140 * gigabyte, 10 * gigabyte) == 4
    assert trainings_that_fit(40 * gigabyte, 10 * gigabyte) == 2
    assert trainings_that_fit(4 * gigabyte, 10 * gigabyte) == 1


def test_unknown_engines_are_refused():
    with pytest.raises(AsmilError, match="local"):
        TrainingEngine("locale")
    with pytest.raises(AsmilError, match="address"):
        TrainingEngine("local", address="auto")
