"""The fused executor on a GPU: gradients beside double precision, side by side as alone, exact resume, whole runs."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from asmil import Bag, build
from asmil.models.inference import infer
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
WIDTH = 64


class Bags(list):
    def stream(self, order):
        return (self[i] for i in order)


def labeled(seed, n=24, tiles=300):
    draw = np.random.default_rng(seed)
    targets = np.arange(n) % 2
    bags = Bags()
    for i, target in enumerate(targets):
        features = draw.normal(size=(tiles + 17 * i, WIDTH)).astype(np.float16)
        features[:60] += target
        bags.append(Bag(features, id=f"s{i}"))
    return LabeledBags(bags, targets.astype(np.int64))


def config(epochs=4, **changes):
    training = {"epochs": epochs, "lr": 1e-3, "schedule": "constant", **changes.pop("training", {})}
    anchor = {"normalizer": "nsf", "weight": 0.1}
    return resolve("asmil", "no_anchor", {"training": training, "anchor": anchor, "model": {"drop": 0.5}, **changes})


def trainers(settings, seeds, folder):
    task = Classification(["a", "b"])
    return [
        Trainer(
            build_model(settings, WIDTH, 2, s), task, settings, seed=s, device="cuda", folder=folder and folder / f"{s}"
        )
        for s in seeds
    ]


def fit(settings, seeds, folder=None, data=None):
    from asmil.training.fused.train import fit_fused
    from asmil.training.resident import ResidentBags
    from asmil.training.turns import TrainingPart

    found = trainers(settings, seeds, folder)
    train, val = data or (labeled(0), labeled(1, 10))
    fit_fused([TrainingPart(found, train, val)], ResidentBags(WIDTH, torch.device("cuda"), torch.bfloat16))
    return found


def weights(trainer):
    return torch.cat([parameter.detach().flatten().cpu() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize(
    ("width", "inner", "tokens", "heads"),
    [(384, 128, 8, 8), (96, 48, 4, 4), (1024, 512, 8, 8), (384, 128, 16, 8), (64, 16, 2, 8), (768, 384, 8, 8)],
)
def test_gradients_are_those_of_double_precision(width, inner, tokens, heads):
    from asmil.training.fused.forward import Dropped
    from asmil.training.fused.layout import Sizes
    from asmil.training.fused.step import Step, StepSettings
    from asmil.training.fused.weights import Weights
    from asmil.training.resident import ResidentBags

    torch.manual_seed(0)
    device = torch.device("cuda")
    models = [
        build("asmil", width, 3, inner=inner, tokens=tokens, heads=heads, drop=0.0, dropout=0.0, init_std=1.0)
        for _ in range(2)
    ]
    bags = Bags(Bag(torch.randn(n, width).bfloat16(), id=str(n)) for n in (2500, 7, 300, 1))
    resident = ResidentBags(width, device, torch.bfloat16)
    resident.add(bags)
    flat = Weights(Sizes.of(models[0]), 2, device, torch.bfloat16)
    settings = StepSettings(Dropped(), 1.0, 0.999, 1e-4, (0.9, 0.999), (1.0, 2.0, 3.0))
    step = Step(flat, resident, settings, 2500, 4, torch.ones(4, 2))
    anchors = [build("asmil", width, 3, inner=inner, tokens=tokens, heads=heads, init_std=1.0).eval() for _ in models]
    for p, (model, anchor) in enumerate(zip(models, anchors, strict=True)):
        for name, parameter in model.named_parameters():
            flat.layout.view(flat.parameters, name)[p].copy_(parameter.detach())
        for name in flat.layout.anchor_names:
            flat.layout.view(flat.anchors, name)[p].copy_(anchor.get_parameter(name).detach())
    flat.refresh()
    models = [model.double().to(device) for model in models]
    anchors = [anchor.double().to(device) for anchor in anchors]
    for place, bag in enumerate(bags):
        step.forward.bag.fill_(place)
        step.target.fill_(place % 3)
        step.compute_gradients()
        exact = Bag(bag.features.double().to(device))
        for p, (model, anchor) in enumerate(zip(models, anchors, strict=True)):
            model.zero_grad()
            output = model(exact)
            with torch.no_grad():
                log_target = torch.log_softmax(functional.logsigmoid(anchor.attend(exact)), dim=-1)
            held = (log_target.exp() * (log_target - output.scores.log_softmax(dim=-1))).sum(dim=-1).mean()
            target = torch.tensor([place % 3], device=device)
            loss = (1.0 + place % 3) * functional.cross_entropy(output.logits[None], target)
            (loss + held).backward()
            expected = torch.stack([loss, held]).detach().float()
            torch.testing.assert_close(step.losses[p], expected, rtol=3e-2, atol=3e-2)
            for name, parameter in model.named_parameters():
                exact_gradient = parameter.grad
                if exact_gradient.norm() < 1e-2:
                    continue  # rounding, where one tile takes all the attention
                error = (step.gradient(name)[p].double() - exact_gradient).norm() / exact_gradient.norm()
                limit = 0.05 if inner > 16 else 0.25  # with few units, one that rounding turns off counts for much
                assert error < limit, f"{name}, {len(bag)} tiles: off by {float(error):.1e}"


def test_alone_and_side_by_side_have_the_same_bits(tmp_path):
    together = fit(config(), [0, 1, 2], tmp_path / "together")
    (alone,) = fit(config(), [1], tmp_path / "alone")
    assert torch.equal(weights(together[1]), weights(alone))
    assert not torch.equal(weights(together[0]), weights(alone))
    records = [read_epochs(tmp_path / where / "metrics.jsonl") for where in ("together/1", "alone/1")]
    for line in (*records[0], *records[1]):
        line.pop("seconds")
    assert records[0] == records[1]


def test_several_folds_at_the_same_time_have_the_same_bits_as_each_alone(tmp_path):
    from asmil.training.fused.train import fit_fused
    from asmil.training.resident import ResidentBags
    from asmil.training.turns import TrainingPart

    data = [(labeled(0), labeled(1, 10)), (labeled(2), labeled(3, 10))]
    parts = [TrainingPart(trainers(config(), [0, 1], tmp_path / f"{k}"), *own) for k, own in enumerate(data)]
    fit_fused(parts, ResidentBags(WIDTH, torch.device("cuda"), torch.bfloat16))
    for k, own in enumerate(data):
        alone = fit(config(), [0, 1], tmp_path / f"alone {k}", own)
        for trainer, same in zip(parts[k].trainers, alone, strict=True):
            assert torch.equal(weights(trainer), weights(same))
    assert not torch.equal(weights(parts[0].trainers[0]), weights(parts[1].trainers[0]))


def test_a_resumed_training_has_the_same_bits(tmp_path):
    settings = config(6, training={"select": "last"})
    straight = fit(settings, [0, 1], tmp_path / "straight")
    fit(config(2, training={"select": "last"}), [0, 1], tmp_path / "resumed")
    fit(config(3, training={"select": "last"}), [1], tmp_path / "resumed")  # one gets ahead
    resumed = fit(settings, [0, 1], tmp_path / "resumed")
    for one, other in zip(straight, resumed, strict=True):
        assert torch.equal(weights(one), weights(other))
        anchors = [torch.cat([p.flatten() for p in t.stabilizers["anchor"].copy.parameters()]) for t in (one, other)]
        assert torch.equal(*anchors)


def test_it_learns_what_the_plain_executor_learns(tmp_path):
    settings = config(8, training={"select": "last"})
    train, val = labeled(0), labeled(1, 20)
    fit(settings, [0], tmp_path / "fused", (train, val))
    (plain,) = trainers(settings, [0], tmp_path / "plain")
    plain.fit(train, val)
    lines = {name: read_epochs(tmp_path / name / "0" / "metrics.jsonl") for name in ("fused", "plain")}
    assert lines["fused"][-1]["train"].keys() == lines["plain"][-1]["train"].keys()
    assert [line["lr"] for line in lines["fused"]] == pytest.approx([line["lr"] for line in lines["plain"]])
    for name in ("fused", "plain"):
        assert lines[name][-1]["val"]["macro_auc"] > 0.95, name
        assert lines[name][-1]["train"]["loss"] < 0.5 * lines[name][0]["train"]["loss"], name


def test_early_stopping_and_no_anchor(tmp_path):
    settings = config(30, training={"early_stopping": 2}, anchor={"normalizer": "none"})
    val = labeled(1, 10)
    wrong = LabeledBags(val.bags, 1 - val.targets)  # the more is learned, the worse it looks
    found = fit(settings, [0, 1, 2], tmp_path, (labeled(0), wrong))
    ended = [read_epochs(tmp_path / str(seed) / "metrics.jsonl")[-1]["epoch"] for seed in range(3)]
    assert min(ended) < 30
    assert all(math.isfinite(float(weights(trainer).sum())) for trainer in found)


def test_evaluation_of_many_bags_agrees_with_one_at_a_time(tmp_path):
    from asmil.training.fused.members import MemberEvaluator, Members
    from asmil.training.resident import ResidentBags

    (trainer,) = fit(config(2), [0])
    train, val = labeled(0), labeled(1, 10)
    bags = ResidentBags(WIDTH, torch.device("cuda"), torch.bfloat16)
    bags.add(train.bags)
    bags.add(val.bags)
    members = Members([trainer], bags, train, bags.numbers(val.bags))
    evaluator = MemberEvaluator(members, 0)
    logits = evaluator.logits(val.bags)
    said = evaluator.said([(val.bags, place) for place in range(10)])
    for place, bag in enumerate(val.bags):
        output = infer(trainer.model, bag, "cuda")
        torch.testing.assert_close(logits[place], output.logits, rtol=0.03, atol=0.03)
        attention = trainer.model.tile_map(output).numpy()
        assert np.abs(said[place].attention - attention).sum() < 0.03
        np.testing.assert_allclose(said[place].embedding, output.embedding, atol=0.05)


def test_a_run_of_several_seeds_and_folds(tmp_path):
    from asmil.synthetic.bags import SyntheticConfig, write_synthetic
    from asmil.training.run import train_run

    sizes = SyntheticConfig(slides=24, width=WIDTH, tiles_min=50, tiles_max=200)
    manifest = write_synthetic(tmp_path / "cohort", sizes)
    settings = config(3, folds=2, seeds=2)
    folder = train_run(manifest, tmp_path / "run", settings)
    for _, _, training in folder.trainings():
        state = (training / "checkpoints" / "last.json").read_text()
        assert '"executor": "fused"' in state
        assert (training / "attention.h5").exists()
    before = folder.predictions.read_bytes()
    train_run(manifest, tmp_path / "run", settings)
    assert folder.predictions.read_bytes() == before
    plain = resolve("asmil", "no_anchor", {"training": {"epochs": 3, "executor": "plain"}})
    other = train_run(manifest, tmp_path / "plain", plain)
    assert '"executor": "plain"' in (other.training(0, 0) / "checkpoints" / "last.json").read_text()
