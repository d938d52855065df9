"""The public Python interface: every name of `asmil`, on a tiny cohort of every task."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import asmil
from asmil.evaluation.localization import dice
from asmil.models import ModelConfig
from asmil.training.interruption import Interrupted
from shared_data import REPOSITORY
from small_task_cohorts import WIDTH, write_cohort

TASKS = ("classification", "survival", "regression", "multilabel")
SETTINGS = {"training.epochs": 1, "model.attention": 8, "model": {"inner": 8}}
FEW = 40
"""Resamples of the bootstrap: the numbers are tested elsewhere."""


@dataclass(frozen=True)
class Trained:
    manifest: Path
    cohort: asmil.Cohort
    run: asmil.TrainedRun


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    found = {}
    for task in TASKS:
        folder = tmp_path_factory.mktemp(task)
        manifest = write_cohort(folder, task, split=task != "classification")
        cohort = asmil.load_cohort(manifest, features=folder / "features", task=task)
        folds = 2 if task == "classification" else 1
        run = asmil.train(
            cohort, folder / "run", method="abmil", folds=folds, seeds=folds, settings=SETTINGS, progress=False
        )
        found[task] = Trained(manifest, cohort, run)
    return found


@pytest.fixture
def classified(trained: dict[str, Trained]) -> Trained:
    return trained["classification"]


def test_every_name_is_documented():
    page = (REPOSITORY / "docs" / "python.md").read_text()
    assert [name for name in asmil.__all__ if f"`{name}`" not in page and f"`{name}(" not in page] == []
    without = [name for name in asmil.__all__ if name != "__version__" and not getattr(asmil, name).__doc__]
    assert without == []


@pytest.mark.heavy
def test_type_checkers_see_the_types(tmp_path: Path):
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(
        "import asmil\n"
        "from asmil.evaluation import accuracy\n"
        "run = asmil.load_run('run')\n"
        "reveal_type(run.predictions)\n"
        "reveal_type(asmil.predict(run, asmil.Bag([[1.0]])))  # type: ignore[arg-type]\n"
        "reveal_type(asmil.predict(run, 'slides'))\n"
        "reveal_type(accuracy)\n"
        "asmil.nonsense\n"
    )
    told, _, _ = api.run(["--follow-imports=silent", "--cache-dir", str(REPOSITORY / ".mypy_cache"), str(script)])
    revealed = [line for line in told.splitlines() if "Revealed" in line]
    for line, kind in zip(revealed, ("DataFrame", "SlidePrediction", "DataFrame", "float"), strict=True):
        assert kind in line
    assert 'no attribute "nonsense"' in told


@pytest.mark.parametrize("task", TASKS)
def test_a_cohort_knows_its_task(trained, task):
    cohort = trained[task].cohort
    assert isinstance(cohort, asmil.Cohort)
    assert cohort.task == task
    assert len(cohort) == len(cohort.table) == 32
    assert ("time" if task == "survival" else "label") in cohort.table
    assert "s00" not in repr(cohort)


@pytest.mark.parametrize("task", TASKS)
def test_a_run_holds_predictions_metrics_and_models(trained, task):
    run = asmil.load_run(trained[task].run.path)
    assert (run.task, run.method, run.name) == (task, "abmil", "run")
    assert task in repr(run)
    assert run.settings["training"]["epochs"] == 1
    assert {"slide", "patient", "fold", "seed", "role"} <= set(run.predictions)
    run.predictions.drop(columns="slide", inplace=True)
    assert "slide" in run.predictions  # each caller gets its own table
    trainings = {(fold, seed) for fold in range(2) for seed in range(2)} if task == "classification" else {(0, 0)}
    assert run.models.keys() == trainings
    assert all(isinstance(model, asmil.MILModel) and not model.training for model in run.models.values())


@pytest.mark.parametrize("task", TASKS)
def test_evaluation_of_every_task(trained, task):
    run = trained[task].run
    found = run.evaluate(resamples=FEW)
    same = asmil.evaluate(str(run.path), resamples=FEW)
    pd.testing.assert_frame_equal(found.table, same.table)
    assert list(found.table.columns) == ["value", "low", "high", "sd_seeds"]
    assert list(found.table.index) == list(found.metrics) == list(run.metrics)
    for shown in (str(found), found._repr_html_()):
        assert all(name in shown for name in found.metrics)
    ignored = asmil.evaluate(run, resamples=FEW, threshold="f1").warnings
    assert any("f1" in warning for warning in ignored) == (task != "classification")
    with pytest.raises(asmil.AsmilError, match="'exam'"):
        run.evaluate("exam")


@pytest.mark.parametrize("task", TASKS)
def test_new_slides_are_predicted_from_a_table_a_cohort_and_an_array(trained, task):
    one = trained[task]
    from_table = asmil.predict(one.run, one.manifest)
    from_cohort = asmil.predict(one.run.path, one.cohort)
    pd.testing.assert_frame_equal(from_table, from_cohort)
    assert len(from_table) == (16 if task == "survival" else 32)
    tiles = np.random.default_rng(1).normal(size=(7, WIDTH))
    predicted = one.run.predict(tiles)
    assert isinstance(predicted, asmil.SlidePrediction)
    assert set(predicted.values) <= set(from_table.columns)
    assert predicted.tile_map.shape == (7,)
    for same in (torch.tensor(tiles), asmil.Bag(tiles)):
        np.testing.assert_array_equal(asmil.predict(one.run, same).tile_map, predicted.tile_map)


def test_a_folder_and_a_file_of_features_are_predicted(classified):
    features = classified.manifest.parent / "features"
    table = asmil.predict(classified.run, features)
    assert sorted(table["slide"]) == sorted(slide.slide for slide in classified.cohort)
    alone = asmil.predict(classified.run, str(features / "s03.h5"))
    assert alone["prob_a"].item() == pytest.approx(table.set_index("slide")["prob_a"]["s03"])


def test_a_slide_that_cannot_be_predicted_is_named_and_the_others_are(classified, tmp_path):
    features = classified.manifest.parent / "features"
    (tmp_path / "good.h5").write_bytes((features / "s00.h5").read_bytes())
    (tmp_path / "broken.h5").write_bytes(b"no features")
    with pytest.warns(asmil.AsmilWarning, match=r"broken\.h5"):
        table = asmil.predict(classified.run, tmp_path)
    assert list(table["slide"]) == ["good"]
    (tmp_path / "good.h5").unlink()
    with pytest.raises(asmil.AsmilError, match=r"broken\.h5"):
        asmil.predict(classified.run, tmp_path)


def test_attention_is_of_the_models_that_were_not_trained_on_the_slide(classified):
    run = classified.run
    folds = run.predictions.groupby("slide")["fold"].nunique()
    name = folds[folds == 1].index[0]  # tested in one fold, trained on in the other
    tested = run.predictions.query("slide == @name")
    shown = run.attention(name)
    assert shown.tile_map.sum() == pytest.approx(1)
    assert len(shown.coords) == len(shown.tile_map) == shown.n_tiles
    assert shown.values["prob_a"] == pytest.approx(tested["prob_a"].mean(), abs=1e-5)
    file = classified.manifest.parent / "features" / f"{name}.h5"
    np.testing.assert_array_equal(run.attention(file).tile_map, shown.tile_map)
    assert run.attention(np.ones((3, WIDTH))).tile_map.shape == (3,)
    with pytest.raises(asmil.AsmilError, match="'sharpness'"):
        run.attention(name, kind="sharpness")
    with pytest.raises(asmil.AsmilError, match=r"'s255'.*'s25'"):
        run.attention("s255")


def test_attention_of_a_patient_whose_slides_are_joined(trained):
    shown = trained["survival"].run.attention("p03")
    assert set(shown.slide_index) == {0, 1}


def test_recorded_attention_by_fold_and_seed(classified):
    recorded = classified.run.recorded_attention
    assert recorded.keys() == classified.run.models.keys()
    record = recorded[1, 0]
    weights = record.attention(0)
    np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_runs_are_compared(classified, tmp_path):
    other = asmil.train(
        classified.manifest,
        tmp_path / "mean",
        method="mean_pooling",
        folds=2,
        seeds=2,
        settings={"training.epochs": 1},
        progress=False,
    )
    found = asmil.compare([classified.run, other.path], resamples=FEW)
    assert {name for name, _ in found.table.index} == {"run", "mean"}
    assert set(found.differences_table.columns) == {"difference", "low", "high", "p", "p_holm"}
    assert "macro_f1" in str(found)
    assert "macro_f1" in found._repr_html_()
    against = asmil.compare([classified.run, other], reference=other, resamples=FEW)
    assert against.reference == "mean"
    with pytest.raises(asmil.AsmilError, match="list"):
        asmil.compare(classified.run)


def test_a_finished_run_is_not_trained_again_and_other_settings_are_refused(classified):
    written = (classified.run.path / "predictions.parquet").stat().st_mtime_ns
    arguments = {"method": "abmil", "folds": 2, "seeds": 2, "progress": False}
    again = asmil.train(classified.manifest, classified.run.path, settings=SETTINGS, **arguments)
    pd.testing.assert_frame_equal(again.predictions, classified.run.predictions)
    assert (again.path / "fold-0" / "seed-0" / "predictions.parquet").stat().st_mtime_ns <= written
    with pytest.raises(asmil.AsmilError, match=r"training\.epochs"):
        asmil.train(classified.manifest, again.path, settings={**SETTINGS, "training.epochs": 2}, **arguments)


def test_a_stopped_training_is_an_interrupt_of_the_notebook(classified, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise Interrupted

    monkeypatch.setattr("asmil.api.functions.train_run", stop)
    with pytest.raises(KeyboardInterrupt, match="resume"):
        asmil.train(classified.manifest, tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda one: asmil.load_cohort("nowhere.csv"), "nowhere.csv"),
        (lambda one: asmil.load_cohort(one.manifest, task="clasification"), "'classification'"),
        (lambda one: asmil.load_run(one.manifest.parent), "config.yaml"),
        (lambda one: asmil.evaluate("nowhere"), "nowhere"),
        (lambda one: asmil.train(one.cohort, "never", method="asml"), "'asmil'"),
        (lambda one: asmil.train(one.cohort, "never", preset="papr"), "'paper'"),
        (lambda one: asmil.train(one.cohort, "never", settings={"training.epoch": 3}), "'epochs'"),
        (lambda one: asmil.train(one.cohort, "never", task="regression"), "regression"),
        (lambda one: asmil.train(one.cohort, "never", features="here"), "load_cohort"),
        (lambda one: asmil.predict(one.run, "nowhere"), "nowhere"),
        (lambda one: asmil.predict(one.run, 3), "int"),
        (lambda one: asmil.predict(one.run, np.array([["a"]])), "U1"),
        (lambda one: asmil.predict(one.run, np.zeros((2, WIDTH + 1))), str(WIDTH + 1)),
        (lambda one: asmil.build("abmil", 8), "n_outputs"),
    ],
)
def test_wrong_input_is_one_sentence_that_names_it(classified, call, named):
    with pytest.raises(asmil.AsmilError) as told:
        call(classified)
    assert named in str(told.value)
    assert isinstance(told.value, ValueError)
    assert not Path("never").exists()


def test_a_model_of_your_own_is_trained_by_its_name(classified, tmp_path, monkeypatch):
    from asmil.models import registry

    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))

    @asmil.register("my_mean", summary="mean of the tiles", paper="none", year=2026)
    class MyMean(asmil.MILModel):
        config_type = ModelConfig
        score_axes = ()

        def __init__(self, in_features: int, n_outputs: int, config: ModelConfig) -> None:
            super().__init__(in_features, n_outputs, config)
            self.head = torch.nn.Linear(in_features, n_outputs)

        def forward(self, bag: asmil.Bag) -> asmil.Output:
            pooled = bag.features.float().mean(dim=0)
            return asmil.Output(logits=self.head(pooled), scores=None, embedding=pooled)

    assert "my_mean" in asmil.methods()
    run = asmil.train(
        classified.cohort, tmp_path / "run", method="my_mean", settings={"training.epochs": 1}, progress=False
    )
    assert isinstance(run.models[0, 0], MyMean)
    tiles = np.ones((3, WIDTH))
    assert run.predict(tiles).tile_map is None
    with pytest.raises(asmil.AsmilError, match="MyMean"):
        run.attention(tiles)


def test_models_are_built_and_asked():
    model = asmil.build("asmil", in_features=16, n_outputs=3, tokens=2)
    output = asmil.infer(model, asmil.Bag(torch.randn(9, 16)))
    assert isinstance(output, asmil.Output)
    assert output.logits.shape == (3,)
    assert isinstance(asmil.Anchor(model), torch.nn.Module)
    with pytest.warns(DeprecationWarning, match="n_outputs"):
        old = asmil.build("abmil", in_features=16, n_classes=2)
    assert old.n_outputs == 2
    with pytest.warns(DeprecationWarning, match="n_outputs"), pytest.raises(asmil.AsmilError, match="n_outputs"):
        asmil.build("abmil", 16, 2, n_classes=2)


def test_an_estimator_learns_from_arrays():
    draw = np.random.default_rng(0)
    bags = [draw.normal(size=(5, 8)) for _ in range(6)]
    assert asmil.MILClassifier("abmil", epochs=1).fit(bags, [0, 1] * 3).predict(bags).shape == (6,)


def test_names_that_moved_warn_and_are_not_listed():
    import asmil.evaluation

    with pytest.warns(DeprecationWarning, match=r"asmil\.evaluation\.localization"):
        assert asmil.evaluation.dice is dice
    assert not {"dice", "specificity", "rank_tiles"} & set(asmil.evaluation.__all__)
    pairs = {("evaluate_run", "write_report"), ("compare_runs", "write_comparison"), ("accuracy", "balanced_accuracy")}
    assert all({*pair} <= set(asmil.evaluation.__all__) for pair in pairs)
    assert all(getattr(asmil.evaluation, name) is not None for name in asmil.evaluation.__all__)


def test_listing_the_names_loads_nothing():
    script = "import sys, asmil, asmil.evaluation; dir(asmil); print({'torch', 'pandas', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_commands_start_without_what_few_of_them_need():
    """scipy.stats takes half as long to import as torch."""
    script = "import sys, asmil.api.functions; print('scipy.stats' in sys.modules, 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
