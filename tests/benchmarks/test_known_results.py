"""Benchmarks leave out trainings whose results exist, and add to tables instead of replacing them."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import reproduction
from asmil.experiments.running import SweepFolder
from asmil.experiments.settings import read_sweep
from asmil.paper.claims.measured import Measured
from known_results import is_known, joined, missing_jobs
from shared_data import REPOSITORY

MEASURED = REPOSITORY / "src" / "asmil" / "paper" / "data" / "measured"


@dataclass(frozen=True)
class Row:
    cohort: str
    variant: str
    seed: int
    fold: int = 0
    test_auc: float = 0.5


def table(*rows: Row) -> pd.DataFrame:
    return pd.DataFrame([vars(row) for row in rows])


@pytest.fixture(scope="module")
def preset_jobs():
    plan = read_sweep(REPOSITORY / "studies" / "preset.yaml")
    return SweepFolder(plan, Path("nowhere"), on_gpu=False).fixed_jobs()


def test_jobs_with_results_are_left_out_and_first_seeds_come_first(preset_jobs):
    known = table(*(Row(job.trial.cohort, job.trial.variant, s) for job in preset_jobs for s in job.seeds if s < 4))
    jobs, left_out = missing_jobs(preset_jobs, known, again=["medium-0"])
    assert left_out == 11 * 4 * 4
    assert [job.seeds[0] for job in jobs] == [seed for seed in range(4) for _ in range(11)] + [4] * 55
    assert {job.seeds for job in jobs if job.trial.cohort != "medium-0"} == {(4,)}
    assert len(missing_jobs(preset_jobs, pd.DataFrame())[0]) == len(preset_jobs)


def test_a_result_without_the_columns_of_a_measure_is_not_known(tmp_path):
    run = next(run for run in reproduction.runs_of(tmp_path, toy=True) if run.recipe.id == "overfitting")
    job = SweepFolder(run.sweeps()[0], run.out, on_gpu=False).fixed_jobs()[0]
    rows = table(*(Row(job.trial.cohort, job.trial.variant, seed) for seed in job.seeds))
    assert not is_known(job, rows)
    assert not is_known(job, rows.assign(val_auc_fall=float("nan")))
    assert is_known(job, rows.assign(val_auc_fall=0.1))


def test_new_rows_are_added_and_replace_those_of_the_same_training():
    old = table(Row("a", "x", 0, test_auc=0.1), Row("a", "x", 1, test_auc=0.2))
    new = table(Row("a", "x", 1, test_auc=0.3), Row("b", "x", 0, test_auc=0.4))
    assert list(joined(old, new)["test_auc"]) == [0.1, 0.3, 0.4]
    assert list(joined(pd.DataFrame(), new)["test_auc"]) == [0.3, 0.4]


def test_gathered_results_extend_the_carried_ones(tmp_path):
    (tmp_path / "update.csv").write_text((MEASURED / "update.csv").read_text())
    rows = table(Row("bracs-hard", "every batch", 0, test_auc=0.61), Row("camelyon16-hard", "every batch", 0))
    done = rows.assign(status="done", table="update", slides=300, epochs=30, site_bias=[0.6, 0.6])
    reproduction.carry(done, tmp_path, "a test")
    found = pd.read_csv(tmp_path / "update.csv")  # without CAMELYON-16, which has sites
    assert len(found) == len(Measured().results("update")) + 1
    assert found["test_auc"].isin([0.61]).sum() == 1


def test_gathered_rows_of_transmil_are_those_of_all_tables_that_share_them(tmp_path):
    rows = table(Row("bracs-vit_s_ssl", "transmil", 0, test_auc=0.71)).assign(jsd_late=0.1)
    reproduction.carry(rows.assign(status="done", table="dynamics", slides=300, epochs=30), tmp_path, "a test")
    for name, row in (("plug-in", "transmil"), ("subtyping", "transmil (vit_s_ssl)")):
        (found,) = pd.read_csv(tmp_path / f"{name}.csv").to_dict("records")
        assert (found["variant"], found["test_auc"]) == (row, 0.71)
        assert "jsd_late" not in found


def test_the_table_of_an_unfinished_run_counts_as_known(tmp_path):
    rows = table(Row("a", "x", 0), Row("a", "x", 1)).assign(table="update", slides=300, epochs=30)
    rows.assign(status=["done", "failed"]).to_csv(tmp_path / "all.csv", index=False)
    assert list(reproduction.read_known([tmp_path], "update", (300, 30))["seed"]) == [0]
    assert reproduction.read_known([tmp_path], "beta", (300, 30)).empty
    assert reproduction.read_known([tmp_path], "update", (300, 50)).empty


@pytest.mark.parametrize(("place", "source"), reproduction.SAME_TRAININGS.items())
def test_rows_that_two_tables_share_are_trained_with_the_same_settings(place, source, tmp_path):
    def settings(name, row):
        part = reproduction.Part(name, ("bracs",), (row,), seeds=3)
        (sweep,) = reproduction._run(part, tmp_path / name, toy=False).sweeps()
        job = SweepFolder(sweep, tmp_path, on_gpu=False).fixed_jobs()[0]
        return job.manifest, job.config().model_dump(exclude={"record"})

    assert settings(*place) == settings(*source)


def test_the_carried_dynamics_are_those_of_the_anchor_study():
    table = reproduction.dynamics_of(REPOSITORY / "docs" / "results" / "anchor_study")
    pd.testing.assert_frame_equal(table, Measured().results("dynamics"))
