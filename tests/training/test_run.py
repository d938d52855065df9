import numpy as np
import pandas as pd
import pytest
import yaml

from asmil import AsmilError, Bag
from asmil.cohort.features import FeatureSource, Provenance, read_bag, write_features
from asmil.cohort.manifest import Slide, load_cohort
from asmil.cohort.splits import Splits
from asmil.runs.config import resolve
from asmil.runs.description import read_description
from asmil.runs.prediction import open_models, predict_bag, predict_slide, prediction_row
from asmil.runs.writer import RunWriter
from asmil.training.run import RunObserver, plan_run, train_run
from watched_training import ReadAfter


def config(method="abmil", **sections):
    training = {"epochs": 2, **sections.pop("training", {})}
    return resolve(method, changes={"training": training, **sections})


@pytest.fixture(scope="module")
def folds_run(small_cohort, tmp_path_factory):
    manifest = tmp_path_factory.mktemp("nosplit") / "cohort.csv"
    table = pd.read_csv(small_cohort).drop(columns="split")
    table["features"] = [str(small_cohort.parent / "features" / f"{slide}.h5") for slide in table["slide"]]
    table.to_csv(manifest, index=False)
    out = tmp_path_factory.mktemp("run") / "run"
    return train_run(manifest, out, config("asmil", folds=3, seeds=2)), manifest


def test_the_files_of_a_run(folds_run):
    folder, manifest = folds_run
    description = yaml.safe_load(folder.config.read_text())
    assert description["task"]["classes"] == ["normal", "tumor"]
    assert description["features"]["width"] == 24
    assert [(fold, seed) for fold, seed, _ in folder.trainings()] == [(f, s) for f in range(3) for s in range(2)]
    splits = Splits.load(folder.splits)
    predictions = pd.read_parquet(folder.predictions)
    assert list(predictions.columns[:6]) == ["slide", "patient", "fold", "seed", "role", "target"]
    np.testing.assert_allclose(predictions[["prob_normal", "prob_tumor"]].sum(axis=1), 1)
    tested = predictions[predictions["role"] == "test"]
    assert sorted(tested.loc[tested["seed"] == 0, "slide"]) == sorted(pd.read_csv(manifest)["slide"])
    for fold in range(3):
        for role in ("val", "test"):
            rows = predictions[
                (predictions["fold"] == fold) & (predictions["role"] == role) & (predictions["seed"] == 1)
            ]
            assert sorted(rows["slide"]) == sorted(splits.slides(fold, role))


def test_the_test_fold_is_not_read_before_training_has_ended(small_cohort, tmp_path, monkeypatch):
    test_slides = {slide.slide for slide in load_cohort(small_cohort).slides if slide.split == "test"}
    watched = ReadAfter(monkeypatch)
    train_run(small_cohort, tmp_path / "run", config(), observer=watched)
    assert test_slides
    assert {watched.epochs[name] for name in test_slides} == {2}


def test_prediction_averages_the_models_and_needs_no_labels(folds_run, small_cohort):
    folder, _ = folds_run
    trained_run = open_models(folder.path)
    assert len(trained_run.models) == 6
    slide = load_cohort(small_cohort).slides[0]
    result = predict_slide(trained_run, slide, attention=True)
    bag = read_bag(slide.source, slide.slide)
    singles = [predict_bag(trained_run, bag, trained=[one]).probabilities for one in trained_run.trained]
    np.testing.assert_allclose(result.probabilities, np.mean(singles, axis=0))
    assert result.tile_map.shape == (len(bag),)
    assert result.tile_map.sum() == pytest.approx(1, abs=1e-5)


def test_features_made_in_another_way_are_refused(folds_run, tmp_path):
    folder, _ = folds_run
    trained_run = open_models(folder.path)
    cases = {
        "wider": (30, Provenance()),
        "encoder": (24, Provenance(encoder="other")),
        "size": (24, Provenance(tile_um=512.0, tile_px=256)),
    }
    for name, (width, provenance) in cases.items():
        path = tmp_path / f"{name}.h5"
        write_features(path, np.ones((5, width), np.float32), np.zeros((5, 2), np.int64), provenance)
        with pytest.raises(AsmilError, match="features differ"):
            predict_slide(trained_run, Slide(name, name, None, FeatureSource(path)))


def test_a_run_without_ended_trainings_and_a_foreign_folder_are_named(tmp_path, folds_run, small_cohort):
    with pytest.raises(AsmilError, match="run folder"):
        open_models(tmp_path)
    out = RunWriter(tmp_path / "run")
    out.begin(read_description(folds_run[0]))
    with pytest.raises(AsmilError, match="training"):
        open_models(out.path)


def test_a_checkpoint_of_another_method_is_refused(small_cohort, tmp_path):
    one = train_run(small_cohort, tmp_path / "a", config("abmil"))
    two = train_run(small_cohort, tmp_path / "b", config("asmil"))
    name = "fold-0/seed-0/checkpoints/best.safetensors"
    (one.path / name).write_bytes((two.path / name).read_bytes())
    with pytest.raises(AsmilError, match=r"asmil.*abmil"):
        open_models(one.path)


@pytest.mark.parametrize("cache", ["none", "memory", "disk"])
def test_the_cache_does_not_change_the_result(small_cohort, tmp_path, cache, folds_run):
    results = []
    for mode in ("auto", cache):
        run = train_run(small_cohort, tmp_path / mode, config(data={"cache": mode}))
        results.append(pd.read_parquet(run.predictions))
    pd.testing.assert_frame_equal(results[0], results[1])


def test_preparations_are_reported(small_cohort, tmp_path):
    seen = []

    class Listen(RunObserver):
        def preparing(self, what, done, total):
            seen.append((what, done, total))

    train_run(small_cohort, tmp_path / "run", config(data={"cache": "disk"}), observer=Listen())
    assert [one for one in seen if one[0] == "comparing slides"][-1] == ("comparing slides", 24, 24)
    assert [one for one in seen if one[0] == "packing features"][-1] == ("packing features", 24, 24)


def test_going_on_with_another_cohort_is_refused(small_cohort, tmp_path):
    manifest = tmp_path / "cohort.csv"
    table = pd.read_csv(small_cohort)
    table["features"] = [str(small_cohort.parent / "features" / f"{slide}.h5") for slide in table["slide"]]
    table.to_csv(manifest, index=False)
    train_run(manifest, tmp_path / "run", config())
    table.iloc[:-1].to_csv(manifest, index=False)
    with pytest.raises(AsmilError, match="--out"):
        train_run(manifest, tmp_path / "run", config())


def test_a_finished_training_keeps_no_optimizer_and_is_not_trained_again(small_cohort, tmp_path):
    run = train_run(small_cohort, tmp_path / "run", config())
    training = run.training(0, 0)
    last = training / "checkpoints" / "last.safetensors"
    assert last.stat().st_size < 4000
    first = pd.read_parquet(training / "predictions.parquet")
    (training / "predictions.parquet").unlink()
    epochs: list[int] = []

    class Watch(RunObserver):
        def epoch(self, fold, seed, record):
            epochs.append(record["epoch"])

    train_run(small_cohort, tmp_path / "run", config(), observer=Watch())
    assert epochs == []
    pd.testing.assert_frame_equal(pd.read_parquet(training / "predictions.parquet"), first)


def test_more_epochs_for_a_finished_run_are_refused(small_cohort, tmp_path):
    train_run(small_cohort, tmp_path / "run", config())
    with pytest.raises(AsmilError, match=r"training\.epochs"):
        train_run(small_cohort, tmp_path / "run", resolve("abmil", changes={"training": {"epochs": 99}}))


def test_a_plan_writes_nothing(small_cohort, tmp_path):
    plan = plan_run(small_cohort, tmp_path / "run", config())
    assert not (tmp_path / "run").exists()
    (fold,) = plan.slides_per_fold()
    assert sum(fold.values()) == 24
    assert plan.finished == 0


def test_released_preset_trains_and_its_anchor_stays_where_it_began(small_cohort, tmp_path, whole_checkpoints):
    run = train_run(small_cohort, tmp_path / "run", resolve("asmil", "released", {"training": {"epochs": 1}}))
    from safetensors.torch import load_file

    from asmil.runs.model import build_model
    from asmil.training.setup import build_stabilizers

    last = load_file(run.training(0, 0) / "checkpoints" / "last.safetensors")
    settings = read_description(run).config
    model = build_model(settings, 24, 2, 0)
    anchor = build_stabilizers(settings, model, 0)["anchor"]
    assert np.array_equal(last["anchor.copy.embedding.layers.0.weight"], anchor.copy.embedding.layers[0].weight)
    assert not np.array_equal(last["anchor.copy.embedding.layers.0.weight"], model.embedding.layers[0].weight.detach())


def test_a_bag_predicts_the_same_from_memory(folds_run):
    trained_run = open_models(folds_run[0].path)
    bag = Bag(np.random.default_rng(0).normal(size=(9, 24)).astype(np.float32), id="x")
    row = prediction_row(trained_run, predict_bag(trained_run, bag))
    assert row["n_tiles"] == 9
    assert row["predicted"] == row["most_probable_class"] in ("normal", "tumor")


def test_settings_that_cannot_be_built_leave_no_folder(small_cohort, tmp_path):
    config = resolve("mean_pooling", changes={"anchor": {"normalizer": "nsf"}})
    with pytest.raises(AsmilError, match="no attention scores"):
        train_run(small_cohort, tmp_path / "run", config)
    with pytest.raises(AsmilError, match="multiple of"):
        train_run(small_cohort, tmp_path / "run", resolve("transmil", changes={"model": {"inner": 100}}))
    assert not (tmp_path / "run").exists()


def test_temporary_files_of_killed_trainings_are_removed(small_cohort, tmp_path):
    out = tmp_path / "run"
    left = [
        out / ".predictions.parquet.0123abcd.partial",
        out / "fold-0" / "seed-0" / "checkpoints" / ".last.safetensors.0123abcd.partial",
        out / "fold-0" / "seed-0" / "attention.parts" / ".part-000000000.h5.0123abcd.partial",
    ]
    report, own = out / ".report.html.0123abcd.partial", out / "fold-0" / ".notes.partial"
    for path in (*left, report, own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    train_run(small_cohort, out, config())
    assert [path for path in left if path.exists()] == []
    assert report.exists(), "another command may be writing it"
    assert own.exists(), "no name of ours"
