"""Jobs: what a seed computes, that test bags do not reach the training, and that finished work is kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from asmil.classic import make_folds, read_set
from asmil.classic.baselines import mi_svm
from asmil.classic.jobs import Job, make_jobs, run_job, run_jobs
from asmil.classic.settings import DEFAULT_METHODS, contenders
from asmil.classic.training import train_parts
from asmil.engine import InlineEngine
from asmil.errors import AsmilError
from shared_data import SHARED_DATA, shared_file

SHORT = {"training": {"epochs": 2, "lr": 0.01}}


def one_row(method, changes=SHORT):
    (row,) = contenders([method], ["paper"], changes)
    return row


def test_a_result_holds_every_rule_fold_by_fold(toy):
    one = toy()
    result = run_job(Job("toy", one_row("mean_pooling"), seed=1, n_folds=3), one)
    assert result["rules"].keys() == {"last", "val", "optimistic"}
    assert all(len(rule["folds"]) == 3 for rule in result["rules"].values())
    assert result["rules"]["last"]["epochs"] == [2, 2, 2]
    assert np.all(np.array(result["rules"]["optimistic"]["folds"]) >= result["rules"]["last"]["folds"])
    json.dumps(result)


def test_what_can_be_learned_is_learned(toy):
    one = toy(n_bags=40, shift=6)
    for method in ("max_pooling", "mi_svm", "bag_forest"):
        row = one_row(method, {"training": {"epochs": 6, "lr": 0.03}})
        result = run_job(Job("toy", row, seed=0, n_folds=2), one)
        assert np.mean(result["rules"]["last"]["folds"]) > 0.85, method
        assert result["rules"]["last"]["auc"] > 0.9


def test_baselines_have_no_epochs(toy):
    result = run_job(Job("toy", one_row("mi_svm"), seed=0, n_folds=3), toy())
    assert result["rules"].keys() == {"last"}
    assert result["rules"]["last"]["epochs"] == []


def test_test_bags_do_not_change_what_is_learned(toy):
    one = toy()
    folds = make_folds(one, 3, 0)
    test, known = folds[0].test, folds[0].train
    features = one.features.copy()
    features[np.isin(one.bag, test)] = 9.0
    changed = replace(one, features=features)
    config = one_row("abmil").config
    parts = [fold.train for fold in folds] + [fold.fit for fold in folds]
    (before, reason), (after, _) = (train_parts(config, bag_set, parts, 0) for bag_set in (one, changed))
    assert reason is None
    assert before.shape == (2, 6, one.n_bags, 2)
    # the trainings of the first fold: on all of its training bags, and on a part
    for training in (0, 3):
        assert np.array_equal(before[:, training][:, known], after[:, training][:, known])
    assert not np.array_equal(before[:, 0][:, test], after[:, 0][:, test])
    scores = mi_svm(one, known, known, 0)
    assert np.array_equal(scores, mi_svm(changed, known, known, 0))


def test_methods_of_the_table_have_one_width_and_one_training():
    rows = contenders(DEFAULT_METHODS, ["paper", "no_anchor"], {})
    assert [row.name for row in rows if row.method == "asmil"] == ["asmil", "asmil (no_anchor)"]
    assert {row.method for row in rows} == set(DEFAULT_METHODS)
    for row in rows:
        if row.config is not None:
            assert (row.config.training.epochs, row.config.training.lr) == (40, 5e-4)
            assert 32 in row.config.model.model_dump().values()
    assert one_row("asmil", {"model": {"tokens": 4}}).config.model.tokens == 4
    assert one_row("ilra").config.model.inner == 32


@pytest.mark.parametrize(
    ("names", "changes", "words"),
    [
        (["asml"], {}, "'asml'.*'asmil'"),
        (["mi_smv"], {}, "'mi_smv'.*'mi_svm'"),
        (["abmil"], {"folds": 3}, "give --folds"),
        (["abmil"], {"training": {"seed": 3}}, "give --seed"),
        (["abmil"], {"data": {"covariates": "age"}}, "data.covariates"),
        (["abmil"], {"model": {"tokens": 3}}, "unknown setting 'model.tokens'"),
    ],
)
def test_wrong_words_are_answered(names, changes, words):
    with pytest.raises(AsmilError, match=words):
        contenders(names, ["paper"], changes)


def test_finished_jobs_are_not_done_again_and_failed_ones_do_not_stop_others(toy, tmp_path):
    one = toy()
    rows = [one_row("mi_svm"), one_row("mean_pooling")]
    sets = {"toy": one}
    first = list(run_jobs(make_jobs([one], rows[:1], [0, 1], 3, tmp_path), sets, InlineEngine()))
    assert not any(done.before for done in first)
    names = sorted(path.name for path in (tmp_path / "jobs").iterdir())
    assert names == ["toy-mi_svm-seed0.json", "toy-mi_svm-seed1.json"]
    (tmp_path / "jobs" / names[1]).unlink()
    again = {done.name: done for done in run_jobs(make_jobs([one], rows, [0, 1], 3, tmp_path), sets, InlineEngine())}
    assert [done.before for done in again.values()] == [True, False, False, False]
    assert again[first[1].name].result["rules"] == first[1].result["rules"]
    broken = replace(one_row("mean_pooling"), config=one_row("asmil", {"model": {"heads": 5}}).config)
    ended = list(run_jobs(make_jobs([one], [broken, rows[0]], [5], 3, None), sets, InlineEngine()))
    assert "model.heads = 5" in ended[0].error
    assert ended[1].error is None


def test_results_of_other_data_or_settings_are_refused(toy, tmp_path):
    one = toy()
    list(run_jobs(make_jobs([one], [one_row("mi_svm")], [0], 3, tmp_path), {"toy": one}, InlineEngine()))
    other = toy(seed=1)
    with pytest.raises(AsmilError, match=r"mi_svm on toy, seed 0: data"):
        list(run_jobs(make_jobs([other], [one_row("mi_svm")], [0], 3, tmp_path), {"toy": other}, InlineEngine()))
    (tmp_path / "jobs" / "toy-mi_svm-seed0.json").write_text("{")
    with pytest.raises(AsmilError, match="remove"):
        list(run_jobs(make_jobs([one], [one_row("mi_svm")], [0], 3, tmp_path), {"toy": one}, InlineEngine()))


def test_musk1_for_real():
    one = read_set(shared_file(SHARED_DATA / "classic" / "musk1.npz"))
    row = one_row("mean_pooling", {"training": {"epochs": 3}})
    result = run_job(Job("musk1", row, seed=0, n_folds=10), one)
    assert 0.5 < np.mean(result["rules"]["last"]["folds"]) < 0.95
    assert len(result["rules"]["last"]["folds"]) == 10
