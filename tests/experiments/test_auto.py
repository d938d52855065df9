"""`asmil auto`: what is chosen, that outer test patients never choose, and that a killed search repeats nothing."""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import asmil
from asmil.cohort.splits import Splits
from asmil.engine import InlineEngine
from asmil.errors import AsmilError
from asmil.experiments.auto import findings, halving, jobs
from asmil.experiments.auto.findings import attention_verdict, win_shares
from asmil.experiments.auto.halving import DESIGNS, Design, fitting_design, ranked, ranking, rungs_of, seconds_of
from asmil.experiments.auto.jobs import JobBatch, JobTrainer, OutOfTimeError
from asmil.experiments.auto.ladder import LADDER, candidates_of
from asmil.experiments.auto.search import Search
from asmil.models.registry import methods
from asmil.reporting import Estimate, Interval
from asmil.tasks.prediction_format import prediction_format
from patience import PATIENCE_S
from shared_data import REPOSITORY

SIMPLE = ("linear", "mean_pooling")
NAN = float("nan")


# Successive halving


def test_half_of_the_candidates_go_on_with_twice_the_epochs():
    rungs = rungs_of(7, Design(5, 3, 0.4))
    assert [rung.candidates for rung in rungs] == [7, 4, 2]
    assert [rung.inner for rung in rungs] == [1, 3, 3]
    assert [rung.share for rung in rungs] == pytest.approx([0.1, 0.2, 0.4])
    assert rungs_of(2, Design(5, 3, 1.0)) == [halving.Rung(2, 3, 1.0)]


def test_ties_go_to_the_simplest_and_undefined_scores_are_last():
    assert ranked({"linear": 0.7, "abmil": 0.7, "clam_sb": 0.8, "broken": NAN}) == [
        "clam_sb",
        "linear",
        "abmil",
        "broken",
    ]


def test_who_reached_a_later_rung_is_ahead_whatever_the_scores_of_earlier_rungs():
    history = [{"a": 0.5, "b": 0.9, "c": 0.8, "d": NAN}, {"b": 0.6, "c": 0.7}]
    assert ranking(history) == ["c", "b", "a", "d"]


def test_a_large_budget_allows_the_most_thorough_design_and_a_small_one_less():
    full = {"linear": 1.0, "mean_pooling": 2.0, "abmil": 4.0, "transmil": 40.0}
    assert fitting_design(full, SIMPLE, 1e6, 5, 3) == (DESIGNS[0], [])
    used = [fitting_design(full, SIMPLE, budget, 5, 3) for budget in (1e6, 300, 100, 30, 1)]
    costs = [seconds_of(design, {k: v for k, v in full.items() if k not in left}, SIMPLE) for design, left in used]
    assert costs == sorted(costs, reverse=True)
    assert used[-1] == (DESIGNS[-1], ["transmil"])  # the simple ones and one attention method always stay


def test_an_expensive_candidate_is_left_out_before_all_others_are_undertrained():
    full = {"linear": 1.0, "mean_pooling": 1.0, "abmil": 1.0, "transmil": 1000.0}
    design, left_out = fitting_design(full, SIMPLE, 120.0, 5, 3)
    assert left_out == ["transmil"]
    assert design == DESIGNS[0]


def test_the_epochs_fill_the_budget():
    full = {"linear": 1.0, "mean_pooling": 2.0, "abmil": 4.0}
    for budget in (1e6, 300, 100, 30):
        design, _ = fitting_design(full, SIMPLE, budget, 5, 3, fixed_s=0.1)
        cost = seconds_of(design, full, SIMPLE, fixed_s=0.1)
        assert design.share == 1.0 or cost == pytest.approx(halving.MARGIN * budget)
        assert cost <= halving.MARGIN * budget * (1 + 1e-9)


def test_methods_with_few_epochs_keep_enough_of_them():
    full = {"linear": 1.0, "mean_pooling": 1.0, "abmil": 1.0}
    assert fitting_design(full, SIMPLE, 0.1, 5, 3, least_share=0.5) == (Design(3, 2, 0.5), [])


def test_a_small_cohort_has_fewer_folds():
    design, _ = fitting_design({"linear": 1.0, "mean_pooling": 1.0, "abmil": 1.0}, SIMPLE, 1e6, 2, 2)
    assert (design.outer, design.inner) == (2, 2)


# The ladder


def test_the_ladder_has_registered_methods_with_valid_settings_and_both_kinds():
    assert {candidate.method for candidate in LADDER} <= set(methods())
    for candidate in LADDER:
        for kind in ("classification", "survival", "regression", "multilabel"):
            assert candidate.config({"task.kind": kind}, 0.5).method == candidate.method
    assert {candidate.attends for candidate in LADDER} == {True, False}
    assert [candidate.name for candidate in candidates_of(["dsmil"])] == [*SIMPLE, "dsmil"]


# The verdict


def difference(value, low, high):
    return Estimate(value, Interval(low, high))


@pytest.mark.parametrize(
    ("linear", "mean", "verdict", "reference"),
    [
        ((0.06, 0.02, 0.10), (0.08, 0.03, 0.12), "pays", "linear"),
        ((0.06, 0.02, 0.10), (0.01, -0.03, 0.05), "undecided", "mean_pooling"),
        ((-0.06, -0.10, -0.02), (0.08, 0.03, 0.12), "does not pay", "linear"),
        ((0.0, -0.1, 0.1), (0.0, NAN, NAN), "undecided", "linear"),
        ((0.05, 0.01, 0.09), (0.06, -0.01, 0.13), "undecided", "mean_pooling"),
    ],
)
def test_attention_pays_only_if_it_is_better_than_both_simple_methods(linear, mean, verdict, reference):
    differences = {"linear": difference(*linear), "mean_pooling": difference(*mean)}
    assert attention_verdict(differences) == (verdict, reference)


def test_attention_that_was_trained_for_few_epochs_is_not_dismissed():
    worse = {"linear": difference(-0.2, -0.3, -0.1)}
    assert attention_verdict(worse, share=1.0) == ("does not pay", "linear")
    assert attention_verdict(worse, share=0.2) == ("undecided", "linear")
    assert attention_verdict({"linear": difference(0.2, 0.1, 0.3)}, share=0.2) == ("pays", "linear")


def test_without_an_attention_method_there_is_no_verdict():
    assert attention_verdict({}) == ("no attention", None)


@pytest.mark.parametrize(
    ("verdict", "limits", "chosen", "contradicts"),
    [
        ("does not pay", (-0.3, -0.1), "linear", False),
        ("does not pay", (-0.3, -0.1), "abmil", True),
        ("pays", (0.1, 0.3), "linear", True),
        ("pays", (0.1, 0.3), "abmil", False),
        ("undecided", (NAN, NAN), "abmil", False),
    ],
)
def test_the_simple_method_is_recommended_only_if_it_was_chosen(searched, verdict, limits, chosen, contradicts):
    ladder = {candidate.name: candidate for candidate in LADDER}
    changed = replace(
        searched[0].findings,
        verdict=verdict,
        reference=ladder["linear"],
        differences={"linear": difference(0.0, *limits)},
        chosen=ladder[chosen],
    )
    assert changed.contradicts == contradicts
    recommended = changed.attention_answer.count("linear probe") == 2
    assert recommended == (verdict == "does not pay" and not contradicts)


def test_a_clearly_better_finalist_wins_all_resamples_and_equal_ones_share_them():
    draw = np.random.default_rng(0)
    target = np.array(["a", "b"] * 30)
    table = pd.DataFrame({"slide": [f"s{i}" for i in range(60)], "patient": [f"p{i}" for i in range(60)]})
    table = table.assign(fold=np.arange(60) // 30, target=target)

    def with_scores(score):
        return table.assign(prob_a=1 - score, prob_b=score)

    form = prediction_format("classification", ("a", "b"))
    assert set(form.prediction_columns) <= set(with_scores(0.5).columns)
    good, noise, other = (
        with_scores(np.clip(0.25 + 0.5 * (target == "b"), 0, 1)),
        with_scores(draw.uniform(size=60)),
        with_scores(draw.uniform(size=60)),
    )
    assert win_shares(form, {"good": good, "noise": noise}) == {"good": 1.0, "noise": 0.0}
    assert sum(win_shares(form, {"noise": noise, "other": other}).values()) == pytest.approx(1)


# Whole searches on small cohorts

SMALL = {"slides": 36, "width": 16, "tiles_min": 20, "tiles_max": 30}
QUICK = {"training.epochs": 2, "training.lr": 1e-3, "training.checkpoint_seconds": 600}


@pytest.fixture
def small_designs(monkeypatch, undrawn_figures):
    """Few folds, the same ones on a slow machine as on a fast one, and no pages besides the search's own."""
    monkeypatch.setattr(findings, "write_report", lambda evaluation: None)
    monkeypatch.setattr(findings, "write_comparison", lambda comparison, folder: None)
    monkeypatch.setattr(halving, "DESIGNS", (Design(2, 1, 1.0),))


def find(cohort, out, **options):
    given = {"minutes": 60, "method": ["abmil"], "settings": QUICK, "progress": False, **options}
    return asmil.auto(cohort, out, **given)


def stored(out):
    return json.loads((out / "auto.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def searched(small_cohort, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halving, "DESIGNS", (Design(2, 1, 1.0),))
        out = tmp_path_factory.mktemp("auto") / "best"
        return find(small_cohort, out), out


def test_no_outer_test_patient_is_in_anything_that_chooses(searched):
    _, out = searched
    outer = Splits.load(out / "outer" / "procedure" / "splits.csv")
    assert outer.n_folds == 2
    for fold in range(outer.n_folds):
        part = outer.table[outer.table["fold"] == fold]
        hidden = part[part["role"] == "test"]
        jobs = sorted((out / "jobs" / f"fold-{fold}").glob("rung-*/*"))
        assert len(jobs) == 5  # three candidates, then two
        for job in jobs:
            used = pd.read_csv(job / "splits.csv", dtype={"slide": str, "patient": str})
            predicted = pd.concat(pd.read_parquet(file) for file in job.glob("fold-*/seed-*/predictions.parquet"))
            for table in (used, predicted):
                assert not set(table["patient"]) & set(hidden["patient"])
                assert not set(table["slide"]) & set(hidden["slide"])
            assert set(used["slide"]) == set(part.loc[part["role"] == "train", "slide"])
            kept = used[used["role"] == "train"]
            assert not set(kept["patient"]) & set(used.loc[used["role"] == "test", "patient"])
    assert not set(outer.table["role"]) - {"train", "test"}


def test_every_patient_is_tested_once_by_a_model_of_the_choice_of_its_fold(searched):
    found, out = searched
    values, tested = stored(out), pd.read_parquet(out / "outer" / "procedure" / "predictions.parquet")
    slides = found.findings.expected.run.cohort.read("classification")[0].slides
    assert sorted(tested["slide"]) == sorted(slide.slide for slide in slides)
    for fold, name in enumerate(values["methods_of_outer_folds"]["procedure"]):
        assert name == ranking(values["rungs"][f"fold-{fold}"])[0]
        job = out / "jobs" / f"fold-{fold}" / "test" / name / "fold-0" / "seed-0" / "predictions.parquet"
        theirs = tested[tested["fold"] == fold].drop(columns="fold").reset_index(drop=True)
        pd.testing.assert_frame_equal(theirs, pd.read_parquet(job).drop(columns="fold"))
    assert values["chosen"]["name"] == ranking(values["rungs"]["all"])[0]


def test_the_page_has_the_answer_the_ladder_and_what_each_candidate_cost(searched):
    found, out = searched
    page, values = found.page.read_text(encoding="utf-8"), stored(out)
    assert found.findings.attention_answer in page.replace("\u00a0", " ")
    assert set(values["seconds"]) == {"linear", "mean_pooling", "abmil"}
    assert min(values["seconds"].values()) > 0
    assert set(values["attention_minus"]) == set(SIMPLE)
    assert values["reference"] == found.findings.reference.name
    assert (values["share_of_epochs"], values["budget_seconds"]) == (1.0, 3600)
    assert values["performance"]["low"] <= values["performance"]["value"] <= values["performance"]["high"]
    assert values["left_out"] == {}


def test_the_model_is_a_bundle_that_predicts_and_was_trained_on_all_patients(searched, small_cohort):
    found, out = searched
    assert asmil.load_run(found.bundle).method == found.findings.chosen.method
    table = asmil.predict(found.bundle, small_cohort)
    assert len(table) == 24
    assert table["used_in_training"].all()
    assert set(Splits.load(out / "model" / "splits.csv").table["role"]) == {"train"}


def refuse_training(monkeypatch):
    def refuse(self, make_worker, jobs):
        assert not jobs
        return iter(())

    monkeypatch.setattr(InlineEngine, "run", refuse)


def test_a_finished_search_is_only_read(searched, small_cohort, monkeypatch):
    _, out = searched
    before = stored(out)
    refuse_training(monkeypatch)
    find(small_cohort, out)
    after = stored(out)
    assert {**after, "seconds_in_all": 0} == {**before, "seconds_in_all": 0}


def test_a_killed_search_goes_on_where_it_was_and_ends_with_the_same_numbers(
    searched, small_cohort, small_designs, tmp_path, monkeypatch
):
    done: list[JobBatch] = []
    run = InlineEngine.run

    def dies_after(most):
        def ends(self, make_worker, jobs):
            for outcome in run(self, make_worker, jobs):
                done.append(outcome.job)
                yield outcome
                if len(done) == most:
                    raise KeyboardInterrupt

        return ends

    for most in (3, 8):
        monkeypatch.setattr(InlineEngine, "run", dies_after(most))
        with pytest.raises(KeyboardInterrupt):
            find(small_cohort, tmp_path)
    spent = json.loads((tmp_path / "clock.json").read_text())["seconds"]
    assert spent > 0
    monkeypatch.setattr(InlineEngine, "run", dies_after(None))
    find(small_cohort, tmp_path)
    folders = [job.folder for batch in done for job in batch.jobs]
    assert len(folders) == len(set(folders))
    ours, whole = stored(tmp_path), stored(searched[1])
    assert ours["seconds_in_all"] > spent
    for name in ("rungs", "performance", "attention_minus", "chosen"):
        assert ours[name] == whole[name]


@pytest.mark.heavy
def test_a_search_killed_at_any_moment_is_resumed(small_cohort, tmp_path):
    out = tmp_path / "best"
    words = [small_cohort, "--out", out, "--minutes", 0.5, "--method", "abmil", "--set", "training.epochs=2", "--quiet"]
    command = [sys.executable, "-m", "asmil", "auto", *map(str, words)]
    first = subprocess.Popen(command)
    try:
        until = time.monotonic() + PATIENCE_S
        while len(done := list(out.rglob("result.json"))) < 8 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        first.kill()
        first.wait()
    kept = {path: path.stat().st_mtime_ns for path in done}
    assert len(kept) >= 8
    assert not (out / "auto.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert again.returncode == 0, again.stderr
    assert "bundle" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert stored(out)["metric"] == "macro_auc"


def test_labels_without_meaning_end_at_chance(tmp_path, small_designs):
    manifest = asmil.synthetic_cohort(
        tmp_path / "cohort", slides=48, width=16, tiles_min=20, tiles_max=30, seed=1, progress=False
    )
    table = pd.read_csv(manifest)
    by_patient = table.drop_duplicates("patient").set_index("patient")["label"]
    shuffled = pd.Series(np.random.default_rng(0).permutation(by_patient.to_numpy()), index=by_patient.index)
    table.assign(label=table["patient"].map(shuffled)).to_csv(manifest, index=False)
    found = find(manifest, tmp_path / "best")
    low, high = found.findings.performance.interval
    assert low <= 0.5 <= high
    assert found.findings.is_chance
    assert found.findings.verdict == "undecided"


@pytest.mark.parametrize(
    ("task", "metric", "options"),
    [
        ("classification", "macro_auc", {"classes": 3}),
        ("survival", "c_index", {}),
        pytest.param("regression", "r2", {}, marks=pytest.mark.heavy),
        pytest.param("multilabel", "macro_auc", {}, marks=pytest.mark.heavy),
    ],
)
def test_every_task(task, metric, options, tmp_path, small_designs):
    manifest = asmil.synthetic_cohort(tmp_path / "cohort", task=task, progress=False, **SMALL, **options)
    found = find(manifest, tmp_path / "best", task=task)
    values = stored(tmp_path / "best")
    assert values["metric"] == metric
    assert np.isfinite(values["performance"]["value"])
    assert found.findings.calibration
    assert len(asmil.predict(found.bundle, manifest)) > 0


# Mistakes


def test_an_unknown_candidate_is_refused_with_the_nearest_name(small_cohort, tmp_path):
    with pytest.raises(AsmilError, match="clam_sb"):
        find(small_cohort, tmp_path / "best", method=["clam_bs"])
    assert not (tmp_path / "best").exists()


def test_too_few_patients_of_a_class_are_refused(small_cohort, tmp_path):
    table = pd.read_csv(small_cohort)
    rare = table[table["label"] == "tumor"].drop_duplicates("patient").head(3)
    manifest = small_cohort.parent / "few.csv"
    pd.concat([table[table["label"] != "tumor"], rare]).to_csv(manifest, index=False)
    with pytest.raises(AsmilError, match="'tumor' has 3 patients"):
        find(manifest, tmp_path / "best")


@pytest.mark.parametrize("options", [{"minutes": 0}, {"settings": {"folds": 3}}, {"settings": {"data.val_share": 0.2}}])
def test_what_the_search_decides_and_an_empty_budget_are_refused(options, small_cohort, tmp_path):
    with pytest.raises(AsmilError):
        find(small_cohort, tmp_path / "best", **options)


def test_a_folder_with_another_search_is_refused(searched, small_cohort):
    with pytest.raises(AsmilError, match="seed"):
        find(small_cohort, searched[1], seed=5)


def test_a_patient_in_two_folds_of_the_manifest_is_leakage(small_cohort, tmp_path):
    table = pd.read_csv(small_cohort).drop(columns="split")
    table = table.assign(fold=np.arange(len(table)) % 2, patient="p" + (np.arange(len(table)) // 2).astype(str))
    manifest = small_cohort.parent / "leaky.csv"
    table.to_csv(manifest, index=False)
    with pytest.raises(AsmilError, match="p0"):
        find(manifest, tmp_path / "best")


def test_a_budget_that_is_too_small_says_what_it_left_out(small_cohort, tmp_path, undrawn_figures, monkeypatch):
    monkeypatch.setattr(Search, "_time_to_choose", lambda self, names, plan: -math.inf)
    found = find(small_cohort, tmp_path / "best", minutes=0.01, method=["abmil", "clam_sb"])
    values = stored(tmp_path / "best")
    assert len(values["left_out"]) == 1
    assert len(values["notes"]) == 1
    assert values["design"]["share"] == 1.0  # two epochs are few already
    assert "Left out" in found.page.read_text(encoding="utf-8")
    assert [len(history) for history in values["rungs"].values()] == [1] * len(values["rungs"])
    refuse_training(monkeypatch)  # what was cut stays cut
    find(small_cohort, tmp_path / "best", minutes=0.01, method=["abmil", "clam_sb"])
    assert stored(tmp_path / "best")["rungs"] == values["rungs"]


def test_a_rung_that_ends_early_compares_the_candidates_that_were_trained(
    small_cohort, tmp_path, small_designs, monkeypatch
):
    slow, begin = ["asmil"], JobTrainer.__call__

    def out_of_time(self, batch):
        if batch.ends_at is not None and batch.jobs[0].folder.name in slow and "rung" in batch.jobs[0].name:
            raise OutOfTimeError
        begin(self, batch)

    monkeypatch.setattr(JobTrainer, "__call__", out_of_time)
    find(small_cohort, tmp_path / "best", method=["abmil", "asmil"])
    values = stored(tmp_path / "best")
    assert set(values["left_out"]) == {"asmil"}
    assert all("asmil" not in rung for history in values["rungs"].values() for rung in history)


def test_a_failed_job_does_not_stop_the_others_of_its_batch(monkeypatch):
    trainer, done = JobTrainer(None, None), []

    def do(jobs, ends_at):
        if "broken" in jobs:
            raise AsmilError("broken")
        done.extend(jobs)

    monkeypatch.setattr(trainer, "_do", do)
    with pytest.raises(AsmilError, match="broken"):
        trainer(JobBatch(("first", "broken", "last")))
    assert done == ["first", "last"]
    with pytest.raises(OutOfTimeError):
        trainer(JobBatch(("late",), ends_at=time.time() + 10, seconds=20))
    assert "late" not in done


def test_time_is_counted_once_where_trainings_overlap():
    assert jobs.covered([(0, 2), (0.1, 2.1), (3, 4)]) == pytest.approx(3.1)
    assert jobs.covered([]) == 0


@pytest.mark.heavy
def test_a_search_on_a_ray_cluster_gives_the_same_choice(small_cohort, searched, small_designs, tmp_path):
    pytest.importorskip("ray")
    from ray_cluster import ray_cluster

    with ray_cluster(REPOSITORY / "src", num_cpus=1) as cluster:
        find(small_cohort, tmp_path, engine="ray", address=cluster.address, workers=1)
    ours, alone = stored(tmp_path), stored(searched[1])
    assert ours["methods_of_outer_folds"] == alone["methods_of_outer_folds"]
    assert ours["performance"]["value"] == pytest.approx(alone["performance"]["value"])
