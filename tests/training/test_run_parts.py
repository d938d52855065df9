"""A run in parts: the same results whoever trains them, and what fails or is left resumes."""

import pandas as pd
import pytest

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


class Here(TrainingEngine):
    """Parts are sent as to another process, but trained in this one."""

    def build(self, device, feature_bytes, observer):
        del device, feature_bytes
        return InlineEngine(1, "cpu", lambda event: getattr(observer, event[0])(*event[1:]))


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


def test_a_part_that_fails_is_named_and_the_others_are_kept(small_cohort, one_by_one, tmp_path, monkeypatch):
    from asmil.training import run_parts

    train = run_parts.Trainings.train

    def failing(self, part):
        if part.fold == 0:
            raise AsmilError("on purpose")
        train(self, part)

    monkeypatch.setattr(run_parts.Trainings, "train", failing)
    with pytest.raises(AsmilError, match=r"fold 0.*on purpose"):
        train_run(small_cohort, tmp_path / "run", CONFIG, engine=Here())
    monkeypatch.setattr(run_parts.Trainings, "train", train)
    seen = Seen()
    assert_same(train_run(small_cohort, tmp_path / "run", CONFIG, observer=seen, engine=Here()), one_by_one)
    assert {event[:2] for event in seen.events} == {("training", 0), ("already", 1)}


def test_parts_keep_all_workers_busy():
    assert split_run(4, (0, 1, 2), 4, whole_folds=False) == [FoldSeeds(fold, (0, 1, 2)) for fold in range(4)]
    assert split_run(1, (5, 6, 7), 2, whole_folds=False) == [FoldSeeds(0, (5,)), FoldSeeds(0, (6, 7))]
    assert len(split_run(2, (0, 1, 2), 100, whole_folds=False)) == 6
    assert len(split_run(2, (0, 1, 2), 100, whole_folds=True)) == 2


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
