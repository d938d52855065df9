"""On a GPU: the same numbers as on the CPU, bags larger than the memory, and training that learns and resumes."""

import numpy as np
import pytest
import torch

from asmil import Anchor, Bag, build, methods
from asmil.attention import build_normalizer
from asmil.models.inference import infer
from asmil.runs.attention_file import read_attention
from asmil.runs.config import resolve
from asmil.runs.epochs import read_epochs
from asmil.runs.model import build_model
from asmil.tasks.classification import Classification
from asmil.training.labeled_bags import LabeledBags
from asmil.training.loop import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
WIDTH = 384


@pytest.fixture(params=sorted(methods()))
def name(request):
    return request.param


def grid(tiles):
    cells = torch.arange(tiles)
    return torch.stack([cells % 71, cells // 71], dim=1) * 256


def model_and_bag(name, tiles=5000):
    torch.manual_seed(0)
    features = torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(1))
    model = build(name, WIDTH, 2)
    return model, model.prepare(Bag(features, grid(tiles)))


def close(found, expected, tolerance, what=""):
    """Within a tolerance of the largest value: a GPU adds in another order."""
    if expected is None:
        assert found is None
        return
    error = float((found - expected).abs().max())
    assert error <= tolerance * max(float(expected.abs().max()), 1e-3), f"{what} off by {error:.1e}"


def test_same_numbers_as_on_the_cpu(name):
    model, bag = model_and_bag(name)
    on_cpu = infer(model, bag)
    on_gpu = infer(model.cuda(), bag, "cuda")
    close(on_gpu.logits, on_cpu.logits, 1e-3)
    close(on_gpu.scores, on_cpu.scores, 1e-3)


def test_gradients_agree_with_the_cpu(name):
    """In double precision, so that no tile is chosen differently by rounding."""
    model, bag = model_and_bag(name, 500)
    gradients = []
    for device in ("cpu", "cuda"):
        model.to(device, torch.float64).zero_grad()
        model.eval()
        placed = bag.to(device, torch.float64)
        output = model(placed)
        loss = torch.nn.functional.cross_entropy(output.logits[None], torch.tensor([1], device=device))
        if output.scores is not None:
            loss = loss + Anchor(model).loss(placed, output.scores)
        loss.backward()
        gradients.append({n: p.grad.cpu().clone() for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, value in gradients[0].items():
        close(gradients[1][key], value, 1e-3, key)


@pytest.mark.parametrize("name", ["abmil", "asmil", "clam_sb"])
def test_a_bag_larger_than_the_memory_runs_in_chunks_with_the_same_result(name):
    model, bag = model_and_bag(name, 300_000)
    expected = infer(model.cuda(), bag, "cuda", chunk_tiles=len(bag))
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    before = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((before + 400 * 2**20) / total)
    try:
        found = infer(model, bag, "cuda", chunk_tiles=len(bag))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-4)


class Bags(list):
    def stream(self, order):
        return (self[i] for i in order)


def labeled(seed):
    draw = np.random.default_rng(seed)
    targets = np.arange(16) % 2
    bags = Bags()
    for i, target in enumerate(targets):
        features = draw.normal(size=(200, WIDTH)).astype(np.float16)
        features[:40] += 0.5 * target
        bags.append(Bag(features, grid(200), id=f"s{i}"))
    return LabeledBags(bags, targets.astype(np.int64))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_learns_and_goes_on_from_a_checkpoint(name, precision, tmp_path):
    def trainer(epochs):
        settings = {"epochs": epochs, "lr": 1e-3, "precision": precision, "schedule": "constant", "select": "last"}
        config = resolve(name, changes={"training": settings})
        model = build_model(config, WIDTH, 2, 0)
        task = Classification(["a", "b"])
        return Trainer(model, task, config, seed=0, device="cuda", folder=tmp_path)

    trainer(3).fit(labeled(0), labeled(1))
    first_losses = [record["train"]["loss"] for record in read_epochs(tmp_path / "metrics.jsonl")]
    second = trainer(10)
    second.fit(labeled(0), labeled(1))
    losses = [record["train"]["loss"] for record in read_epochs(tmp_path / "metrics.jsonl")]
    assert losses[: len(first_losses)] == first_losses
    assert np.isfinite(losses).all()
    if name in ("asmil", "abmil", "clam_sb", "transmil", "dsmil"):
        assert second.validate(labeled(1))["macro_auc"] > 0.95


RULES = {"softmax": {}, "nsf": {}, "standardized_nsf": {}, "sparsemax": {}, "entmax": {"alpha": 1.3}, "mixture": {}}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_normalizers_agree_with_the_cpu(rule):
    scores = 3 * torch.randn(8, 20_000, generator=torch.Generator().manual_seed(0))
    scores[:, ::7] = -torch.inf
    normalizer = build_normalizer(rule, **RULES[rule])
    close(normalizer.cuda()(scores.cuda()).detach().cpu(), normalizer.cpu()(scores).detach(), 1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["abmil", "asmil", "transmil", "dtfd"])
def test_every_stabilizer_trains_is_recorded_and_goes_on(name, precision, tmp_path):
    mixed = {} if name == "transmil" else {"attention": {"normalizer": "mixture"}}
    changes = {
        "anchor": {"normalizer": "entmax"},
        "stabilizers": {term: {"weight": 0.1} for term in ("temporal", "features", "entropy", "l2")},
        "training": {"epochs": 4, "lr": 1e-3, "precision": precision},
        "record": {"every": 7, "role": "both"},
        **mixed,
    }
    config = resolve(name, changes=changes)
    bags = labeled(0)
    for _ in range(2):  # the second finds all done, with the attention in one file
        trainer = Trainer(
            build_model(config, WIDTH, 2, 0), Classification(["a", "b"]), config, seed=0, device="cuda", folder=tmp_path
        )
        trainer.fit(bags, bags)
    records = read_epochs(tmp_path / "metrics.jsonl")
    assert all(np.isfinite(value) for record in records for value in record["train"].values())
    assert {"anchor", "temporal", "features", "entropy", "l2"} <= records[-1]["train"].keys()
    record = read_attention(tmp_path)
    assert record.steps.tolist() == list(range(0, int(record.steps[-1]) + 1, 7))
    assert np.isfinite(record.attention(0)).all()
