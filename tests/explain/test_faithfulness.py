"""`asmil faithfulness`: every task, controls, and what is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import asmil
from asmil.engine.local import LocalEngine
from asmil.errors import AsmilError
from asmil.evaluation.localization.localize import LocalizeSettings, localize_run
from asmil.evaluation.run_alarms import alarms_of_run
from asmil.explain import faithfulness
from asmil.explain.faithfulness import FaithfulnessSettings, faithfulness_run
from asmil.explain.faithfulness_report import write_faithfulness
from asmil.explain.flipping import SHARES
from asmil.runs.config import resolve
from asmil.settings.made_from import DoneBefore
from asmil.training.run import train_run
from small_task_cohorts import write_cohort

FEW = FaithfulnessSettings(kinds=("attention", "leave_one_out"), resamples=50, slides=3, device="cpu")


@pytest.fixture(scope="module")
def trained(small_cohort, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    train_run(small_cohort, out, resolve("abmil", changes={"training": {"epochs": 2, "lr": 1e-3}}))
    return out


def test_a_run_with_known_tiles(trained, tmp_path, asmil_here):
    kinds = ("--kind", "attention", "--kind", "gradient")
    done = asmil_here(
        "faithfulness", trained, "-o", tmp_path, *kinds, "--resamples", 50, "--device", "cpu", "--slides", 4, "-q"
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "faithfulness.json").read_text(encoding="utf-8"))
    assert content["slides"] == 4
    maps = {"attention", "gradient"}
    assert set(content["kinds"]) == maps | {"random", "oracle"}
    assert all(len(one["most_relevant_first"]) == len(SHARES) for one in content["curves"].values())
    assert all({"tile_auc", "froc"} <= set(content["kinds"][kind]) for kind in maps)
    assert "over_attention" not in content["kinds"]["attention"]
    slides = pd.read_csv(tmp_path / "faithfulness_slides.csv")
    area = content["kinds"]["gradient"]["area"]["value"]
    assert slides["area_gradient"].mean() == pytest.approx(area, abs=1e-6)
    assert (tmp_path / "faithfulness.html").stat().st_size > 5000
    page = (tmp_path / "faithfulness.html").read_text(encoding="utf-8")
    assert page.count('class="note alarm"') == min(3, len(alarms_of_run(trained)))
    assert (tmp_path / "faithfulness.csv").is_file()


def test_results_do_not_depend_on_the_run_of_the_command(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(faithfulness, "TRUTH_FILE", "none.parquet")
    first, second = faithfulness_run(trained, FEW), faithfulness_run(trained, FEW)
    assert set(first.kinds) == {"attention", "leave_one_out", "random"}
    assert first.kinds["leave_one_out"].area == second.kinds["leave_one_out"].area
    assert first.kinds["random"].area == second.kinds["random"].area


def test_finished_slides_are_not_computed_again(trained, tmp_path, monkeypatch):
    whole = faithfulness_run(trained, FEW, keep=tmp_path)
    kept = sorted(tmp_path.glob("*.json"))
    assert len(kept) == 3
    kept[0].unlink()
    kept[1].write_text("{", encoding="utf-8")
    computed = []
    flip_slide = faithfulness._flip_slide

    def counted(explainer, unit, *others):
        computed.append(unit.name)
        return flip_slide(explainer, unit, *others)

    monkeypatch.setattr(faithfulness, "_flip_slide", counted)
    again = faithfulness_run(trained, FEW, keep=tmp_path)
    assert sorted(computed) == [kept[0].stem, kept[1].stem]
    assert again.kinds == whole.kinds
    computed.clear()
    with pytest.raises(AsmilError, match="seed: there 0, asked 1"):
        faithfulness_run(trained, replace(FEW, seed=1), keep=tmp_path)
    faithfulness_run(trained, replace(FEW, seed=1), keep=tmp_path, done_before=DoneBefore(again=True))
    assert len(computed) == 3


def test_a_slide_without_its_file_does_not_stop_the_others(small_cohort, tmp_path, asmil_here):
    cohort = tmp_path / "cohort"
    shutil.copytree(small_cohort.parent, cohort)
    run = tmp_path / "run"
    train_run(cohort / small_cohort.name, run, resolve("abmil", changes={"training": {"epochs": 1}}))
    splits = pd.read_csv(run / "splits.csv")
    slide = splits.loc[splits["role"] == "test", "slide"].iloc[0]
    (damaged,) = cohort.rglob(f"{slide}.h5")
    damaged.write_bytes(damaged.read_bytes()[:300])
    done = asmil_here("faithfulness", run, "--kind", "attention", "--resamples", 20, "--workers", 0, "-q")
    assert done.returncode == 1
    assert slide in done.stderr
    assert "Traceback" not in done.stderr
    assert (run / "faithfulness" / "faithfulness.json").is_file()


@pytest.mark.heavy
def test_workers_compute_the_same(trained):
    alone = faithfulness_run(trained, FEW)
    shared = faithfulness_run(trained, FEW, engine=lambda n_slides: LocalEngine(2, threads_per_worker=1))
    for kind, summary in alone.kinds.items():
        assert shared.kinds[kind].area.value == pytest.approx(summary.area.value, abs=1e-6)


def test_slides_can_be_chosen_for_localization(trained, small_cohort):
    truth = small_cohort.parent / "tile_truth.parquet"
    settings = LocalizeSettings(truth=truth, resamples=20, device="cpu")
    names = [one.map.slide.slide for one in localize_run(trained, settings).slides]
    some = localize_run(trained, replace(settings, slides=frozenset(names[:2])))
    assert [one.map.slide.slide for one in some.slides] == names[:2]


def test_other_kinds_can_be_localized(trained, small_cohort):
    truth = small_cohort.parent / "tile_truth.parquet"
    found = localize_run(trained, LocalizeSettings(truth=truth, kind="gradient", resamples=20, device="cpu"))
    assert found.map_kind == "gradient"
    assert 0 <= found.summary.unscaled["tile_auc"].value <= 1


@pytest.mark.parametrize("task", ["survival", "regression", "multilabel"])
def test_other_tasks(task, tmp_path):
    manifest = write_cohort(tmp_path, task, split=True)
    settings = {"training.epochs": 1, "model.attention": 8, "model": {"inner": 8}}
    run = asmil.train(manifest, tmp_path / "run", method="abmil", task=task, settings=settings, progress=False)
    found = faithfulness_run(run.path, FEW)
    assert found.task == task
    assert set(found.kinds) == {"attention", "leave_one_out", "random"}
    assert np.isfinite(found.kinds["leave_one_out"].area.value)
    page = write_faithfulness(found, tmp_path / "out")
    assert page.is_file()


def test_mistakes(trained, asmil_here):
    for words, told in [
        ((trained, "--kind", "gradiant"), "gradient"),
        ((trained, "--class", "nobody"), "nobody"),
        ((trained.parent,), "run folder"),
        ((trained, "--truth", "none.parquet"), "none.parquet"),
    ]:
        done = asmil_here("faithfulness", *words, "--device", "cpu", "-q")
        assert done.returncode == 1
        assert told in done.stderr
