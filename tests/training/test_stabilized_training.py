"""Normalizers and stabilizers through the settings: what they do in a training, and what is refused."""

import numpy as np
import pytest
import torch

from asmil import AsmilError, Bag, methods
from asmil.attention import NSF, Mixture
from asmil.runs.config import StabilizersConfig, resolve
from asmil.runs.description import read_description
from asmil.runs.epochs import read_epochs
from asmil.runs.model import build_model
from asmil.training.run import train_run
from asmil.training.setup import STABILIZERS, build_stabilizers

WIDTH = 16
WITH_SCORES = sorted(name for name, method in methods().items() if method.model.score_axes)


def config(method="abmil", **changes):
    return resolve(method, changes=changes)


def built(method="abmil", **changes):
    settings = config(method, **changes)
    model = build_model(settings, WIDTH, 2, 0)
    return model, build_stabilizers(settings, model, 0)


def bag(model) -> Bag:
    draw = np.random.default_rng(0)
    coords = np.stack([np.arange(20) % 5, np.arange(20) // 5], axis=1) * 256
    return model.prepare(Bag(draw.normal(size=(20, WIDTH)).astype(np.float32), coords, id="s"))


@pytest.mark.parametrize("method", WITH_SCORES)
def test_the_online_normalizer_is_used_or_refused(method):
    plain = build_model(config(method), WIDTH, 2, 0).eval()
    if plain.normalizer_built_in:
        with pytest.raises(AsmilError, match="cannot be replaced"):
            build_model(config(method, attention={"normalizer": "nsf"}), WIDTH, 2, 0)
        return
    other = build_model(config(method, attention={"normalizer": "nsf", "temperature": 0.2}), WIDTH, 2, 0).eval()
    assert isinstance(other.normalizer, NSF)
    given = bag(plain)
    draw = torch.Generator().manual_seed(0)
    for buffer, same in zip(plain.buffers(), other.buffers(), strict=True):
        if buffer.is_floating_point():  # prototypes that are all equal at the start give all tiles one score
            buffer.copy_(same.add_(torch.randn(same.shape, generator=draw)))
    with torch.no_grad():
        assert not torch.equal(plain(given).embedding, other(given).embedding)


@pytest.mark.parametrize("method", [name for name in WITH_SCORES if name != "transmil"])
def test_a_mixture_is_trained_and_stands_once_in_the_state(method):
    model = build_model(config(method, attention={"normalizer": "mixture"}), WIDTH, 2, 0)
    model(bag(model))
    assert isinstance(model.normalizer, Mixture)
    assert [name for name in model.state_dict() if name.endswith("xi")] == ["normalizer.xi"]
    groups = [parameter for group in model.parameter_groups() for parameter in group["params"]]
    assert any(parameter is model.normalizer.xi for parameter in groups)


@pytest.mark.parametrize("method", ["abmil", "asmil", "aem", "ibmil", "dtfd", "mhim"])
def test_a_mixture_runs_through_training_and_prediction(small_cohort, tmp_path, method):
    settings = config(method, attention={"normalizer": "mixture"}, training={"epochs": 2, "lr": 0.01})
    run = train_run(small_cohort, tmp_path / "run", settings)
    records = read_epochs(run.training(0, 0) / "metrics.jsonl")
    zetas = [record["zeta"] for record in records]
    assert all(0 < zeta < 1 for zeta in zetas)
    assert zetas[-1] != 0.5
    from asmil.runs.prediction import open_models

    model = open_models(run.path).models[0]
    assert abs(model.normalizer.zeta - 0.5) > 1e-6


def test_any_combination_is_noted_part_by_part(small_cohort, tmp_path):
    settings = config(
        "asmil",
        anchor={"normalizer": "entmax", "alpha": 1.3},
        attention={"normalizer": "nsf", "temperature": 0.5},
        stabilizers={
            "temporal": {"weight": 0.5},
            "features": {"weight": 1},
            "entropy": {"weight": 0.1},
            "l2": {"weight": 0.01},
        },
        training={"epochs": 2, "lr": 1e-3},
    )
    run = train_run(small_cohort, tmp_path / "run", settings)
    first, second = read_epochs(run.training(0, 0) / "metrics.jsonl")
    assert list(second["train"]) == ["loss", "ce", "anchor", "temporal", "features", "entropy", "l2"]
    assert first["train"]["temporal"] == 0 < second["train"]["temporal"]
    assert second["train"]["entropy"] < 0 < second["train"]["l2"]
    total = sum(value for name, value in second["train"].items() if name != "loss")
    assert second["train"]["loss"] == pytest.approx(total, rel=1e-5)
    assert read_description(run).config == settings


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("mean_pooling", {"stabilizers": {"entropy": {"weight": 1}}}, "mean_pooling .*attention"),
        ("mean_pooling", {"attention": {"normalizer": "nsf"}}, "has no attention"),
        ("aem", {"stabilizers": {"entropy": {"weight": 1}}}, "model.weight"),
        ("mhim", {"stabilizers": {"features": {"weight": 1}}}, "model.consistency_weight"),
        (
            "abmil",
            {"stabilizers": {"temporal": {"weight": 1}}, "data": {"max_tiles": 5}},
            "temporal .*max_tiles",
        ),
        (
            "abmil",
            {"anchor": {"normalizer": "nsf"}, "attention": {"normalizer": "sparsemax"}},
            "cannot stabilize Sparsemax",
        ),
        ("abmil", {"stabilizers": {"temporal": {"weight": 1}}, "attention": {"normalizer": "entmax"}}, "weight 0"),
        ("abmil", {"anchor": {"normalizer": "nsf", "rows": "kept"}}, "abmil .*tokens"),
        ("mhim", {"model": {"base": "transmil"}, "attention": {"normalizer": "nsf"}}, "cannot be replaced"),
        ("ibmil", {"model": {"base": "transmil"}, "attention": {"normalizer": "nsf"}}, "cannot be replaced"),
        ("abmil", {"anchor": {"normalizer": "entmax", "temperature": 2}}, "temperature .*softmax.*nsf"),
        ("abmil", {"anchor": {"alpha": 1.2}}, "alpha .*entmax"),
        ("abmil", {"attention": {"normalizer": "nsf", "kappa": 4}}, "kappa .*standardized_nsf"),
        ("abmil", {"anchor": {"normalizer": "mixture"}}, "'none', 'softmax'"),
        ("abmil", {"anchor": {"normalizer": "entmax", "alpha": 1}}, "greater than 1"),
        ("abmil", {"record": {"attention": 0}}, "'record.attention' = 0: "),
        ("abmil", {"record": {"attention": "some"}}, "'some': "),
        (
            "abmil",
            {"record": {"every": 1.5}},
            "'record.every' = 1.5: ",
        ),
        ("abmil", {"record": {"role": "test"}}, "'train', 'val'"),
        ("abmil", {"stabilizers": {"entropie": {"weight": 1}}}, "'entropy'"),
    ],
)
def test_what_makes_no_sense_is_refused(method, changes, message):
    with pytest.raises(AsmilError, match=message):
        built(method, **changes)


def test_every_stabilizer_of_the_settings_can_be_built():
    assert STABILIZERS.keys() - {"anchor"} == StabilizersConfig.model_fields.keys()


def test_an_anchor_of_a_method_whose_softmax_is_built_in_is_fine():
    model, stabilizers = built("transmil", anchor={"normalizer": "sparsemax"})
    assert model.normalizer_built_in
    assert list(stabilizers) == ["anchor"]


@pytest.mark.parametrize("method", ["abmil", "asmil"])
@pytest.mark.parametrize("share", [1e-3, 1e6])
def test_the_anchors_gradient_is_held_to_its_share(method, share):
    from asmil.tasks.classification import Classification
    from asmil.training.gradients import StepGradients

    model, stabilizers = built(method, anchor={"normalizer": "nsf", "weight": 50.0})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    model.eval()
    task, target = Classification(("a", "b")), torch.tensor([1])

    def gradient(**options):
        model.zero_grad()
        steps = StepGradients(model, task, options.pop("stabilizers", stabilizers), False, False, **options)
        steps.of_one(bag(model), target, 1)
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    own, both, capped = gradient(stabilizers={}), gradient(), gradient(anchor_share=share)
    if share > 1:
        torch.testing.assert_close(capped, both)
    else:
        assert 0 < (capped - own).norm() <= 1.01 * share * own.norm()
