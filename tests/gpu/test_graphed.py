"""Steps replayed as CUDA graphs: the numbers of the plain executor, the bits of unrecorded steps, exact resume."""

import numpy as np
import pytest
import torch

from asmil import Bag
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
WIDTH = 64
METHODS = ["abmil", "acmil", "aem", "asmil", "clam_mb", "clam_sb", "demil", "dsmil", "ibmil"]
STILL = {
    "acmil": {"mask_drop": 0.0},
    "asmil": {"drop": 0.0, "dropout": 0.0},
    "clam_mb": {"dropout": 0.0},
    "clam_sb": {"dropout": 0.0},
    "demil": {"dropout": 0.0},
}
LENGTHS = (1, 3, 17, 64, 100, 300, 301, 513, 1000, 1500, 2000, 90)


class Bags(list):
    def stream(self, order):
        return (self[i] for i in order)


def labeled(seed, lengths=LENGTHS):
    draw = np.random.default_rng(seed)
    targets = np.arange(len(lengths)) % 2
    bags = Bags()
    for i, (tiles, target) in enumerate(zip(lengths, targets, strict=True)):
        features = draw.normal(size=(tiles, WIDTH)).astype(np.float16)
        features[: -(-tiles // 4)] += target
        bags.append(Bag(features, id=f"s{i}"))
    return LabeledBags(bags, targets.astype(np.int64))


def trainer(method, folder, model=None, seed=0, **training):
    changes = {
        "training": {"epochs": 4, "lr": 1e-3, "precision": "fp32", "select": "last", **training},
        "model": model or {},
        "anchor": {"normalizer": "nsf", "weight": 0.3},
    }
    config = resolve(method, changes=changes)
    task = Classification(["a", "b"], [0.8, 1.3])
    return Trainer(build_model(config, WIDTH, 2, seed), task, config, seed=seed, device="cuda", folder=folder)


def fit(one, train, val):
    from asmil.training.graphed.train import fit_graphed
    from asmil.training.resident import ResidentBags

    dtype = torch.bfloat16 if one.autocast else torch.float32
    fit_graphed([one], ResidentBags(WIDTH, torch.device("cuda"), dtype), train, val)


def losses(folder):
    return np.array([list(record["train"].values()) for record in read_epochs(folder / "metrics.jsonl")])


@pytest.mark.parametrize("method", METHODS)
def test_a_training_equals_that_of_the_plain_executor(method, tmp_path):
    plain = trainer(method, tmp_path / "plain", STILL.get(method))
    plain.fit(labeled(0), labeled(1))
    graphed = trainer(method, tmp_path / "graphed", STILL.get(method))
    fit(graphed, labeled(0), labeled(1))
    np.testing.assert_allclose(losses(tmp_path / "graphed"), losses(tmp_path / "plain"), rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("method", METHODS)
def test_replayed_steps_have_the_numbers_of_unrecorded_ones(method, batch, tmp_path, monkeypatch):
    """All that is random is on."""
    from asmil.training.graphed import step

    if batch > 1 and method.startswith("clam"):
        pytest.skip("CLAM takes batches without graphs")
    precision = "bf16" if method in ("abmil", "dsmil") else "fp32"
    fit(trainer(method, tmp_path / "graph", batch=batch, precision=precision), labeled(0), labeled(1))

    class Now:
        def __init__(self, steps, shape):
            self.replay = lambda: steps._take(shape)

    monkeypatch.setattr(step.Steps, "_graph", lambda self, shape: Now(self, shape))
    fit(trainer(method, tmp_path / "eager", batch=batch, precision=precision), labeled(0), labeled(1))
    np.testing.assert_allclose(losses(tmp_path / "graph"), losses(tmp_path / "eager"), rtol=1e-3, atol=1e-4)


class Stop(Exception):
    pass


@pytest.mark.parametrize("method", ["abmil", "acmil", "clam_sb", "ibmil"])
def test_a_resumed_training_has_the_same_bits(method, tmp_path):
    settings = {"checkpoint_seconds": 0, "precision": "auto"}
    whole = trainer(method, tmp_path / "whole", **settings)
    fit(whole, labeled(0), labeled(1))

    def stop(record):
        if record["epoch"] == (6 if method == "ibmil" else 3):
            raise Stop

    first = trainer(method, tmp_path / "parts", **settings)
    first.on_epoch = stop
    with pytest.raises(Stop):
        fit(first, labeled(0), labeled(1))
    resumed = trainer(method, tmp_path / "parts", **settings)
    fit(resumed, labeled(0), labeled(1))
    state = whole.model.state_dict()
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("method", ["abmil", "clam_sb"])
def test_together_and_alone_have_the_same_bits(method, tmp_path):
    from asmil.training.graphed.train import fit_graphed
    from asmil.training.resident import ResidentBags

    def seeds(folder, numbers):
        made = [trainer(method, tmp_path / folder / str(seed), precision="auto", seed=seed) for seed in numbers]
        dtype = torch.bfloat16 if made[0].autocast else torch.float32
        fit_graphed(made, ResidentBags(WIDTH, torch.device("cuda"), dtype), labeled(0), labeled(1))
        return [one.model.state_dict() for one in made]

    together = seeds("together", [0, 1, 2])
    (alone,) = seeds("alone", [1])
    assert all(torch.equal(value, together[1][name]) for name, value in alone.items())
    assert losses(tmp_path / "together" / "1").tolist() == losses(tmp_path / "alone" / "1").tolist()
    assert losses(tmp_path / "together" / "0").tolist() != losses(tmp_path / "alone" / "1").tolist()


@pytest.mark.parametrize("method", METHODS)
def test_it_learns(method, tmp_path):
    lengths = tuple(range(100, 500, 17))
    one = trainer(method, tmp_path, precision="auto", epochs=8)
    fit(one, labeled(0, lengths), labeled(1, lengths))
    assert one.validate(labeled(1, lengths))["macro_auc"] > 0.9
