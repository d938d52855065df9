"""No class is read from numbers that are not finite: neither from weights nor from what a model says."""

import shutil
from functools import partial

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from asmil import AsmilError, Bag, MILClassifier, build
from asmil.models.inference import infer
from asmil.runs import checkpoint
from asmil.runs.config import resolve
from asmil.runs.model import build_model
from asmil.runs.prediction import open_models
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import BagList, LabeledBags
from asmil.training.loop import Trainer
from asmil.training.run import train_run
from asmil.training.side_by_side.train import fit_side_by_side


@pytest.fixture(scope="module")
def run(small_cohort, tmp_path_factory):
    return train_run(
        small_cohort, tmp_path_factory.mktemp("finite") / "run", resolve("abmil", changes={"training": {"epochs": 1}})
    )


@pytest.fixture
def copied(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    return tmp_path / "run"


def damage(path, value):
    """Give one weight of a checkpoint another value, as a checkpoint of the same kind."""
    tensors, state = checkpoint.load_checkpoint(path)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel())
    tensors[name].view(-1)[0] = value
    checkpoint.save_checkpoint(path, tensors, state)
    return name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_when_loaded(copied, small_cohort, asmil_here, tmp_path, value):
    path = copied / "fold-0" / "seed-0" / "checkpoints" / "best.safetensors"
    name = damage(path, value)
    with pytest.raises(AsmilError, match=name) as raised:
        open_models(copied)
    assert str(path) in str(raised.value)
    out = tmp_path / "predictions.csv"
    done = asmil_here("predict", copied, small_cohort, "--out", out, "--quiet")
    assert done.returncode == 1
    assert str(path) in done.stderr
    assert not out.exists()


def test_a_slide_whose_prediction_is_undefined_is_named_and_the_others_are_predicted(
    run, small_cohort, asmil_here, tmp_path
):
    features = tmp_path / "features"
    shutil.copytree(small_cohort.parent / "features", features)
    slides = sorted(path.stem for path in features.glob("*.h5"))
    with h5py.File(features / f"{slides[1]}.h5", "r+") as file:
        values = np.full(file["features"].shape, 3e38, dtype=np.float32)
        del file["features"]
        file["features"] = values
    out = tmp_path / "predictions.csv"
    done = asmil_here("predict", run.path, features, "--out", out, "--attention", "--quiet")
    assert done.returncode == 1
    assert slides[1] in done.stderr
    assert pd.read_csv(out)["slide"].tolist() == [slide for slide in slides if slide != slides[1]]
    assert not (tmp_path / "predictions_attention" / f"{slides[1]}.h5").exists()


@pytest.mark.parametrize("method", ["abmil", "mean_pooling", "transmil", "asmil"])
def test_infer_refuses_what_is_not_finite_and_names_the_bag(method):
    with pytest.raises(AsmilError, match="slide-7"):
        infer(build(method, 64, 2), Bag(torch.full((5, 64), 3e38), id="slide-7"))


def test_scores_that_leave_tiles_out_are_no_mistake():
    model = build("hdmil", 8, 2)
    output = infer(model, Bag(torch.randn(30, 8), id="a"))
    assert output.logits.isfinite().all()


def test_the_classifier_refuses_an_undefined_prediction():
    bags = [np.random.default_rng(i).normal(size=(6, 64)).astype(np.float32) for i in range(6)]
    classifier = MILClassifier("abmil", epochs=1, validation_share=0).fit(bags, [0, 1] * 3)
    with pytest.raises(AsmilError, match="bag 1"):
        classifier.predict([bags[0], np.full((6, 64), 3e38, dtype=np.float32)])


@pytest.mark.parametrize("together", [True, False])
def test_trainings_refuse_undefined_predictions(together):
    bags = [Bag(torch.randn(5, 64, generator=torch.Generator().manual_seed(i)), id=f"bag {i}") for i in range(5)]
    # seen only when all bags are predicted
    every = BagList([*bags, Bag(torch.full((5, 64), 3e38), id="bag 5", validated=True)])
    config = resolve("abmil", changes={"training": {"epochs": 1}})
    trainer = Trainer(build_model(config, 64, 2, 0), Classification(["a", "b"]), config, seed=0)
    trainer.on_epoch = lambda record: trainer.logits(every)
    train = LabeledBags(BagList(bags[:4]), np.array([0, 1] * 2))
    fit = partial(fit_side_by_side, [trainer], [train], [None]) if together else partial(trainer.fit, train, None)
    with pytest.raises(AsmilError, match="bag 5"):
        fit()
