"""On a GPU: the same numbers as on the CPU, bags larger than the memory, and training that learns and resumes."""

import numpy as np
import pytest
import torch

from asmil import Anchor, Bag, build, methods
from asmil.models.inference import infer
from asmil.tasks.classification import Classification
from asmil.training.config import resolve
from asmil.training.loop import LabeledBags, Trainer
from asmil.training.setup import build_anchor, build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
WIDTH = 384


@pytest.fixture(params=sorted(methods()))
def name(request):
    return request.param


def model_and_bag(name, tiles=5000):
    torch.manual_seed(0)
    return build(name, WIDTH, 2), Bag(torch.randn(tiles, WIDTH, generator=torch.Generator().manual_seed(1)))


def test_same_numbers_as_on_the_cpu(name):
    model, bag = model_and_bag(name)
    on_cpu = infer(model, bag)
    on_gpu = infer(model.cuda(), bag, "cuda")
    torch.testing.assert_close(on_gpu.logits, on_cpu.logits, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(on_gpu.scores, on_cpu.scores, rtol=1e-3, atol=1e-3)


def test_gradients_agree_with_the_cpu(name):
    model, bag = model_and_bag(name)
    gradients = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        model.eval()
        anchor = Anchor(model)
        placed = bag.to(device)
        output = model(placed)
        target = torch.tensor([1], device=device)
        loss = torch.nn.functional.cross_entropy(output.logits[None], target) + anchor.loss(placed, output.scores)
        loss.backward()
        gradients.append({n: p.grad.cpu().clone() for n, p in model.named_parameters()})
    for key, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], value, rtol=1e-2, atol=1e-3, msg=key)


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
        bags.append(Bag(features, id=f"s{i}"))
    return LabeledBags(bags, targets.astype(np.int64))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_learns_and_goes_on_from_a_checkpoint(name, precision, tmp_path):
    def trainer(epochs):
        settings = {"epochs": epochs, "lr": 1e-3, "precision": precision, "schedule": "constant", "select": "last"}
        config = resolve(name, changes={"training": settings})
        model = build_model(config, WIDTH, 2, 0)
        task = Classification(["a", "b"])
        anchor = build_anchor(config, model, 0)
        return Trainer(model, task, config, seed=0, anchor=anchor, device="cuda", folder=tmp_path)

    trainer(3).fit(labeled(0), labeled(1))
    second = trainer(10)
    second.fit(labeled(0), labeled(1))
    assert second.step == 160
    assert second.validate(labeled(1))["macro_auc"] > 0.95
